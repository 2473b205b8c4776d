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

function drawEvaluation(page, data) {
  if (!data.evaluation) return;
  const { columns, rows, verdicts, tasks } = data.evaluation;
  const told = verdicts.map(({ name, judgement, reason }) =>
    make(
      "p",
      null,
      make("strong", { class: /worse|hacking/.test(judgement) ? "bad" : "good" }, `${name}: ${judgement}`),
      ` ${reason}`,
    ),
  );
  page.append(
    make("h2", null, "Evaluation"),
    make("div", { class: "card" }, make("p", { class: "soft" }, tasks), table("closing", columns, rows), ...told),
  );
}

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  drawHeader(page, data);
  drawClosing(page, data);
  drawEvaluation(page, data);
  drawAlarmList(page, data);
  if (data.group_advice) page.append(make("p", { class: "soft", id: "group-advice" }, data.group_advice));
  drawSections(page, data);
  if (data.episodes.length) drawViewer(page, data);
})();
