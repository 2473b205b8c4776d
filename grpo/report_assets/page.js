"use strict";
// The order of the page: what it was, how it ended, what went wrong, how it went, what the policy did.
function facts(pairs) {
  return make(
    "dl",
    { class: "facts" },
    ...pairs.map(([label, value]) => make("div", null, make("dt", null, label), make("dd", null, value))),
  );
}

function drawHeader(page, data) {
  document.title = `${data.title} · run report`;
  const done =
    String(data.steps_done) === data.steps_planned
      ? `${data.steps_done} steps`
      : `${data.steps_done} of ${data.steps_planned} steps`;
  page.append(
    make(
      "header",
      null,
      make("h1", null, data.title),
      make("p", { class: "soft" }, `${data.algorithm} on ${data.model} · ${done}`),
      facts(data.key_settings),
      make("details", null, make("summary", null, "all settings"), table("settings", null, data.settings)),
      data.provenance.length
        ? make("details", null, make("summary", null, "provenance"), table("settings", null, data.provenance))
        : null,
    ),
  );
}

function drawClosing(page, data) {
  page.append(make("h2", null, "Start policy and trained policy"));
  if (!data.closing) {
    page.append(make("p", { class: "soft" }, "The closing evaluation is not there (yet)."));
    return;
  }
  const speed = [
    data.seconds === null ? null : `${Math.floor(data.seconds / 60)} min ${Math.round(data.seconds % 60)} s in all`,
    data.tokens_per_second === null ? null : `${Math.round(data.tokens_per_second)} tokens a second`,
  ].filter(Boolean);
  page.append(
    make(
      "div",
      { class: "card" },
      table("closing", data.closing.columns, data.closing.rows),
      speed.length ? make("p", { class: "soft" }, speed.join(" · ")) : null,
    ),
  );
}

function drawAlarmList(page, data) {
  if (!data.alarms.length) return;
  const stretch = ([first, last]) => (first === last ? `step ${first}` : `steps ${first} to ${last}`);
  const items = data.alarms.map((alarm) =>
    make("li", null, make("strong", null, words(alarm.name)), `: ${alarm.spans.map(stretch).join(", ")}`),
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

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  drawHeader(page, data);
  drawClosing(page, data);
  drawAlarmList(page, data);
  drawSections(page, data);
  if (data.episodes.length) drawViewer(page, data);
})();
