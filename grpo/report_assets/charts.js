"use strict";
// One uPlot chart a panel. All charts share the cursor, so that a step can be read across them.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const curveColour = (index) => css(`--curve-${(index % 6) + 1}`);
const faint = (colour, alpha) =>
  colour +
  Math.round(alpha * 255)
    .toString(16)
    .padStart(2, "0");

function exact(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6)) return String(Number(value.toPrecision(6)));
  return value.toExponential(4);
}

// Axis labels: short, since the distance of two ticks tells the precision.
function brief(value) {
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5)) return String(Number(value.toPrecision(4)));
  return value.toExponential(2).replace(/\.?0+e/, "e");
}

// Columns in the order that uPlot wants: steps, then for each curve its line and, if it has a band, upper and lower edge.
function chartColumns(panel, data) {
  const columns = [data.steps];
  for (const curve of panel.curves) {
    const line = data.series[curve.metric];
    columns.push(line);
    const spread = curve.band && data.series[curve.band];
    if (spread) {
      columns.push(
        line.map((value, index) => (value === null || spread[index] === null ? null : value + spread[index])),
      );
      columns.push(
        line.map((value, index) => (value === null || spread[index] === null ? null : value - spread[index])),
      );
    }
  }
  return columns;
}

function chartSeries(panel, data) {
  const series = [{ label: "step", value: (chart, value) => (value === null ? "newest" : String(value)) }];
  const bands = [];
  panel.curves.forEach((curve, index) => {
    const spread = curve.band && data.series[curve.band];
    const colour = () => (curve.dashed ? css("--soft") : curveColour(index));
    const sparse = data.series[curve.metric].filter((value) => value !== null).length <= 30;
    series.push({
      label: curve.label,
      stroke: colour,
      width: curve.dashed ? 1.5 : 2,
      dash: curve.dashed ? [6, 5] : undefined,
      spanGaps: true,
      points: { show: sparse && !curve.dashed, size: 6, fill: colour, stroke: colour },
      value: (chart, value, seriesIndex, dataIndex) =>
        exact(value) + (spread && value !== null && dataIndex !== null ? ` ± ${exact(spread[dataIndex])}` : ""),
    });
    if (spread) {
      const edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false }, class: "edge" };
      series.push({ ...edge, label: "upper" }, { ...edge, label: "lower" });
      const upper = series.length - 2;
      bands.push({ series: [upper, upper + 1], fill: () => faint(curveColour(index), 0.18) });
    }
  });
  return { series, bands };
}

// Alarms: a tinted stretch and a mark at its first step.
function drawAlarms(chart, alarms) {
  const { ctx, bbox } = chart;
  const colour = css("--alarm");
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top - 8 * ratio, bbox.width, bbox.height + 8 * ratio);
  ctx.clip();
  for (const [first, last] of alarms.flatMap((alarm) => alarm.spans)) {
    const left = chart.valToPos(first, "x", true);
    const right = chart.valToPos(last, "x", true);
    ctx.fillStyle = faint(colour, 0.14);
    ctx.fillRect(left - ratio, bbox.top, right - left + 2 * ratio, bbox.height);
    ctx.fillStyle = colour;
    ctx.fillRect(left - ratio / 2, bbox.top, ratio, bbox.height);
    ctx.beginPath();
    ctx.moveTo(left - 5 * ratio, bbox.top - 7 * ratio);
    ctx.lineTo(left + 5 * ratio, bbox.top - 7 * ratio);
    ctx.lineTo(left, bbox.top + ratio);
    ctx.fill();
  }
  ctx.restore();
}

function summaryText(panel, data) {
  const curves = panel.curves.map((curve) => {
    const values = data.series[curve.metric].filter((value) => value !== null);
    return `${curve.label} from ${exact(values[0])} to ${exact(values.at(-1))}`;
  });
  return `${panel.title}, ${panel.unit}: ${curves.join("; ")}`;
}

// Without a cursor the legend shows the newest value of every curve.
function showNewest(chart) {
  if (chart.cursor.left >= 0) return;
  const newest = (column, index) => (index === 0 ? null : column.findLastIndex((value) => value !== null));
  chart.setLegend({ idxs: chart.data.map(newest) }, false);
}

function drawPanel(panel, data) {
  const holder = make("div", { role: "img", "aria-label": summaryText(panel, data) });
  const card = make(
    "div",
    { class: `card${panel.title === "Solved" ? " wide" : ""}` },
    make("h3", null, panel.title),
    make("div", { class: "soft" }, panel.unit),
    holder,
  );
  const { series, bands } = chartSeries(panel, data);
  const axis = {
    stroke: () => css("--soft"),
    grid: { stroke: () => css("--line"), width: 1 },
    ticks: { stroke: () => css("--line"), width: 1 },
  };
  const options = {
    width: 300,
    height: 190,
    padding: [10, 14, 0, 0],
    scales: { x: { time: false }, y: panel.share ? { range: [-0.02, 1.02] } : {} },
    series,
    bands,
    axes: [
      {
        ...axis,
        label: "step",
        labelSize: 20,
        size: 30,
        space: 45,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000],
        values: (chart, ticks) => ticks.map(String),
      },
      { ...axis, size: 58, values: (chart, ticks) => ticks.map(brief) },
    ],
    cursor: { sync: { key: "steps" }, y: false, drag: { x: false, y: false } },
    legend: { markers: { width: 3 } },
    hooks: { draw: [(chart) => drawAlarms(chart, data.alarms)], ready: [showNewest], setCursor: [showNewest] },
  };
  return { card, holder, options, columns: chartColumns(panel, data) };
}

function drawSections(page, data) {
  const charts = [];
  for (const section of data.sections) {
    const panels = section.panels.map((panel) => drawPanel(panel, data));
    page.append(
      make("h2", null, section.title),
      make("div", { class: "panels" }, ...panels.map((panel) => panel.card)),
    );
    for (const { holder, options, columns } of panels) {
      options.width = Math.max(200, holder.clientWidth);
      charts.push([new uPlot(options, columns, holder), holder]);
    }
  }
  // Other themes are other colours, which uPlot reads again when it draws.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    charts.filter(([, holder]) => holder.isConnected).forEach(([chart]) => chart.redraw()),
  );
  addEventListener("resize", () =>
    charts
      .filter(([, holder]) => holder.isConnected)
      .forEach(([chart, holder]) => chart.setSize({ width: Math.max(200, holder.clientWidth), height: 190 })),
  );
}

function drawAlarmList(page, data) {
  if (!data.alarms.length) return;
  const stretch = ([first, last]) => (first === last ? `step ${first}` : `steps ${first} to ${last}`);
  const items = data.alarms.map((alarm) =>
    make(
      "li",
      null,
      make("strong", null, words(alarm.name)),
      `, ${alarm.spans.map(stretch).join(", ")}`,
      alarm.message ? `: ${alarm.message}.` : "",
    ),
  );
  page.append(
    make("h2", null, "Alarms"),
    make(
      "div",
      { class: "card alarms" },
      "Marked ▼ on every curve where they were raised.",
      make("ul", null, ...items),
    ),
  );
}
