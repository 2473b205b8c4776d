"use strict";
// Parallel coordinates: an axis a column, a line a trial. A drag along an axis keeps the trials that pass there.
const SVG = "http://www.w3.org/2000/svg";

const NARROWEST = 88; // pixels an axis: what its name takes
const LONGEST = 14; // characters of a mark
const APART = 0.05; // of the height, between two marks

function shape(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Where a column's values lie between 0 (bottom) and 1 (top), and what is written beside the axis.
function scaleOf(values) {
  const present = values.filter((value) => value !== null && value !== undefined);
  const numbers = present.map(Number);
  if (!present.length || numbers.some((number) => !Number.isFinite(number))) {
    const kinds = [...new Set(present.map(String))].sort();
    const place = (value) => (kinds.length > 1 ? kinds.indexOf(String(value)) / (kinds.length - 1) : 0.5);
    return { place, marks: kinds.slice(0, 14).map((kind) => [place(kind), kind]) };
  }
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  const log = low > 0 && high / low >= 50;
  const bend = log ? Math.log : (number) => number;
  const place = (value) => (high > low ? (bend(Number(value)) - bend(low)) / (bend(high) - bend(low)) : 0.5);
  const unique = [...new Set(numbers)];
  const marked = unique.length <= 6 ? unique : [low, high];
  return { place, marks: marked.map((number) => [place(number), brief(number)]) };
}

// `all`: columns [{name, of}]; `report` is told which trials are kept and which one is chosen.
function drawParallel(host, trials, all, report) {
  // What is the same in every trial tells nothing.
  const differs = (column) => new Set(trials.map(column.of).filter((value) => value !== null)).size > 1;
  const columns = all.filter(differs);
  const height = 300;
  const box = { top: 34, bottom: 14, left: 60, right: 60 };
  // May be wider than the screen: then it scrolls.
  const width = Math.max(NARROWEST * columns.length, host.clientWidth);
  const inner = height - box.top - box.bottom;
  const axes = columns.map((column, index) => ({
    ...column,
    ...scaleOf(trials.map(column.of)),
    x: box.left + (index * (width - box.left - box.right)) / Math.max(1, columns.length - 1),
    range: null,
  }));
  const y = (place) => box.top + (1 - place) * inner;
  const best = scaleOf(trials.map((trial) => trial.figures.objective));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "parallel", role: "img" });
  svg.setAttribute("aria-label", `${trials.length} trials over ${columns.map((column) => column.name).join(", ")}`);

  const lines = trials.map((trial) => {
    let path = "";
    let pen = "M";
    for (const axis of axes) {
      const value = axis.of(trial);
      if (value === null || value === undefined) pen = "M";
      else {
        path += `${pen}${axis.x.toFixed(1)},${y(axis.place(value)).toFixed(1)}`;
        pen = "L";
      }
    }
    const share = trial.figures.objective === null ? 0 : best.place(trial.figures.objective);
    const line = shape("path", { d: path, class: "trial" });
    line.style.stroke = `color-mix(in oklab, var(--curve-1) ${Math.round(share * 100)}%, var(--curve-2))`;
    line.append(shape("title", {}, trialName(trial)));
    line.addEventListener("click", () => report.choose(trial));
    svg.append(line);
    return line;
  });

  const kept = () =>
    trials.filter((trial) =>
      axes.every(({ range, of, place }) => {
        const value = of(trial);
        return !range || (value !== null && value !== undefined && place(value) >= range[0] && place(value) <= range[1]);
      }),
    );
  const filter = () => {
    const chosen = new Set(kept());
    trials.forEach((trial, index) => lines[index].classList.toggle("out", !chosen.has(trial)));
    report.keep(chosen);
  };
  for (const axis of axes) svg.append(drawAxis(axis, y, box, inner, svg, filter));
  host.replaceChildren(svg);
  return (trial) => {
    trials.forEach((other, index) => lines[index].classList.toggle("chosen", other === trial));
    const line = lines[trials.indexOf(trial)];
    if (line) svg.insertBefore(line, svg.querySelector("g"));
  };
}

// Both ends, and of the marks between them those that overlap none.
function legible(marks) {
  const sorted = marks.map(([place, text]) => [place, String(text)]).sort((a, b) => a[0] - b[0]);
  const kept = sorted.slice(0, 1);
  for (const mark of sorted.slice(1, -1))
    if (mark[0] - kept.at(-1)[0] >= APART && sorted.at(-1)[0] - mark[0] >= APART) kept.push(mark);
  return sorted.length > 1 ? [...kept, sorted.at(-1)] : kept;
}

function drawAxis(axis, y, box, inner, svg, filter) {
  const brush = shape("rect", { class: "brush", x: axis.x - 7, width: 14, y: 0, height: 0 });
  const grip = shape("rect", { class: "grip", x: axis.x - 14, y: box.top - 6, width: 28, height: inner + 12 });
  const label = shape("text", { x: axis.x, y: 14, "text-anchor": "middle" }, shape("title", {}, axis.name));
  label.append(axis.name.split(".").at(-1).replaceAll("_", " "));
  const marks = legible(axis.marks).map(([place, text]) => {
    const short = text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
    return shape("text", { x: axis.x - 6, y: y(place) + 4, "text-anchor": "end", class: "mark" }, short);
  });
  const line = shape("line", { x1: axis.x, x2: axis.x, y1: box.top, y2: box.top + inner, class: "axis" });
  let start = null;
  const at = (event) => {
    const bounds = svg.getBoundingClientRect();
    const place = 1 - ((event.clientY - bounds.top) * (svg.viewBox.baseVal.height / bounds.height) - box.top) / inner;
    return Math.max(-0.02, Math.min(1.02, place));
  };
  const show = () => {
    brush.setAttribute("y", axis.range ? y(axis.range[1]) : 0);
    brush.setAttribute("height", axis.range ? (axis.range[1] - axis.range[0]) * inner : 0);
  };
  grip.addEventListener("pointerdown", (event) => {
    start = at(event);
    grip.setPointerCapture(event.pointerId);
  });
  grip.addEventListener("pointermove", (event) => {
    if (start === null) return;
    axis.range = [Math.min(start, at(event)), Math.max(start, at(event))];
    show();
  });
  grip.addEventListener("pointerup", (event) => {
    // A click without a drag takes the range away.
    if (Math.abs(at(event) - start) < 0.02) axis.range = null;
    start = null;
    show();
    filter();
  });
  return shape("g", { "data-axis": axis.name }, line, label, ...marks, brush, grip);
}
