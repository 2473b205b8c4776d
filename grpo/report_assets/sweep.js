"use strict";
// A sweep: all trials as lines and as rows; the chosen one with its curves and a few of its episodes.
const trialName = (trial) => {
  const chosen = Object.entries(trial.words).map(([key, value]) => `${key}=${value}`);
  return `trial ${trial.name}${chosen.length ? `: ${chosen.join(" ")}` : ""}`;
};

function sweepColumns(data) {
  const word = (key) => ({ name: key, of: (trial) => trial.words[key] ?? null });
  const figure = (key) => ({ name: key, of: (trial) => trial.figures[key] ?? null });
  return { words: data.swept.map(word), figures: data.figures.map(figure) };
}

function drawSweepHeader(page, data) {
  document.title = `${data.title} · sweep report`;
  const states = new Map();
  for (const trial of data.trials) states.set(trial.state, (states.get(trial.state) || 0) + 1);
  page.append(
    make(
      "header",
      null,
      make("h1", null, data.title),
      make(
        "p",
        { class: "soft" },
        `sweep of ${data.trials.length} trials: ${[...states].map(([state, count]) => `${count} ${state}`).join(", ")}`,
      ),
    ),
  );
}

// Numbers by size, texts by alphabet, what is missing last.
function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  const [first, second] = [Number(a), Number(b)];
  if (Number.isFinite(first) && Number.isFinite(second)) return first - second;
  return String(a).localeCompare(String(b));
}

function drawTrials(page, data, choose) {
  const { words, figures } = sweepColumns(data);
  const first = { name: "trial", of: (trial) => trial.name };
  const state = { name: "state", of: (trial) => trial.state };
  const columns = [first, state, ...words, ...figures];
  let sorted = { column: columns.find((column) => column.name === "objective") || first, down: true };
  const rows = new Map(
    data.trials.map((trial) => {
      const cells = columns.map((column) => {
        const value = column.of(trial);
        if (column === first) return make("td", null, make("button", { click: () => choose(trial) }, value));
        if (column === state) return make("td", { title: trial.reason || "" }, value);
        return make("td", null, typeof value === "number" ? exact(Number(value.toPrecision(4))) : (value ?? "–"));
      });
      return [trial, make("tr", { "data-trial": trial.name }, ...cells)];
    }),
  );
  const body = make("tbody", null);
  const heads = columns.map((column) =>
    make("th", null, make("button", { title: `sort by ${column.name}`, click: () => sort(column) }, column.name)),
  );
  const sort = (column) => {
    sorted = { column, down: sorted.column === column ? !sorted.down : false };
    draw();
  };
  const draw = () => {
    const { column, down } = sorted;
    const inOrder = [...data.trials].sort((a, b) => {
      const [x, y] = [column.of(a), column.of(b)];
      return (x === null || y === null || !down ? 1 : -1) * compare(x, y);
    });
    body.replaceChildren(...inOrder.map((trial) => rows.get(trial)));
    heads.forEach((head, index) => {
      const order = columns[index] === column ? (down ? "descending" : "ascending") : "none";
      head.setAttribute("aria-sort", order);
    });
    return inOrder[0];
  };
  const table = make("table", { class: "trials" }, make("thead", null, make("tr", null, ...heads)), body);
  page.append(make("h2", null, "Trials"), make("div", { class: "card scroll" }, table));
  return { best: draw(), rows };
}

function drawTrial(place, data, trial) {
  const has = (curve) => trial.series[curve.metric];
  const sections = data.sections
    .map((section) => ({
      ...section,
      panels: section.panels
        .map((panel) => ({ ...panel, curves: panel.curves.filter(has) }))
        .filter((panel) => panel.curves.length),
    }))
    .filter((section) => section.panels.length);
  const report = trial.report ? make("a", { href: trial.report }, "its own report") : null;
  place.replaceChildren(make("h2", { id: "trial" }, trialName(trial)));
  place.append(make("p", { class: "soft" }, trial.state, trial.reason ? `: ${trial.reason}` : "", report ? " · " : "", report || ""));
  drawAlarmList(place, trial);
  if (!trial.steps.length) place.append(make("p", null, "It has logged no step (yet)."));
  drawSections(place, { ...trial, sections });
  if (trial.episodes.length) drawViewer(place, trial);
}

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  drawSweepHeader(page, data);
  const lines = make("div", null);
  page.append(
    make("h2", null, "Parallel coordinates"),
    make("p", { class: "soft" }, "A line a trial, blue for a high objective. Drag along an axis to keep what passes there, click it to let all back in."),
    make("div", { class: "card scroll" }, lines),
  );
  const detail = make("div", null);
  const { words, figures } = sweepColumns(data);
  const choose = (trial) => {
    highlight(trial);
    rows.forEach((row, other) => row.classList.toggle("chosen", other === trial));
    drawTrial(detail, data, trial);
  };
  const keep = (kept) => rows.forEach((row, trial) => (row.hidden = !kept.has(trial)));
  const { best, rows } = drawTrials(page, data, choose);
  const highlight = drawParallel(lines, data.trials, [...words, ...figures], { choose, keep });
  page.append(detail);
  if (best) choose(best);
})();
