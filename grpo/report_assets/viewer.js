"use strict";
// Steps through sampled episodes: filters -> group -> sibling -> turn.
function drawViewer(page, data) {
  const state = { split: "all", step: "all", outcome: "all", group: 0, sibling: null, turn: 0 };
  const groupKey = (episode) => `${episode.step}\n${episode.split}\n${episode.task}`;
  const view = make("div", null);
  page.append(make("h2", { id: "episodes" }, "Sampled episodes"));
  if (data.episodes.length < data.episodes_total) {
    page.append(
      make(
        "p",
        { class: "soft" },
        `${data.episodes.length} of ${data.episodes_total} logged episodes, in whole groups spread evenly over the run; rollouts.jsonl has all.`,
      ),
    );
  }
  page.append(
    make(
      "p",
      { class: "soft" },
      "Arrow keys: left and right go through the turns, up and down through the siblings, Page Up and Page Down through the groups.",
    ),
    view,
  );

  const passes = (episode) => state.outcome === "all" || episode.solved === (state.outcome === "solved");

  // A group passes if one of its episodes does: siblings are shown together.
  function groups() {
    const found = new Map();
    for (const episode of data.episodes) {
      if (state.split !== "all" && episode.split !== state.split) continue;
      if (state.step !== "all" && String(episode.step) !== state.step) continue;
      found.set(groupKey(episode), [...(found.get(groupKey(episode)) || []), episode]);
    }
    return [...found.values()].filter((group) => group.some(passes));
  }

  function go(change) {
    Object.assign(state, change);
    const all = groups();
    const clamp = (value, count) => Math.max(0, Math.min(value, count - 1));
    state.group = clamp(state.group, all.length);
    const group = all[state.group] || [];
    state.sibling = clamp(state.sibling ?? group.findIndex(passes), group.length);
    state.turn = clamp(state.turn, group.length ? group[state.sibling].turns.length : 0);
    const focused = view.contains(document.activeElement) ? document.activeElement.dataset.name : "";
    view.replaceChildren(...draw(all, group));
    // The focus follows a choice that the arrow keys moved.
    const [kind] = focused.split(" ");
    const again = view.querySelector(
      `[data-name="${kind in { sibling: 0, turn: 0 } ? `${kind} ${state[kind]}` : focused}"]`,
    );
    if (again) again.focus({ preventScroll: true });
    const pressed = view.querySelector('.sibling[aria-pressed="true"]');
    if (pressed) pressed.parentElement.scrollLeft = pressed.offsetLeft - pressed.parentElement.offsetLeft - 60;
  }

  function choice(name, label, values, pick) {
    const options = values.map(([value, text]) =>
      make("option", { value, selected: String(state[name]) === value }, text),
    );
    return make(
      "label",
      null,
      label,
      make("select", { "data-name": name, change: (event) => pick(event.target.value) }, ...options),
    );
  }

  function controls(all, group) {
    const unique = (field) => [...new Set(data.episodes.map((episode) => String(episode[field])))];
    const plain = (values) => [["all", "all"], ...values.map((value) => [value, value])];
    const first = { group: 0, sibling: null, turn: 0 };
    const name = ([episode]) => `step ${episode.step} · ${episode.split} · ${episode.task}`;
    const step = (by) => go({ group: state.group + by, sibling: null, turn: 0 });
    return make(
      "div",
      { class: "controls" },
      choice("split", "split", plain(unique("split")), (split) => go({ split, ...first })),
      choice("step", "step", plain(unique("step")), (value) => go({ step: value, ...first })),
      choice(
        "outcome",
        "outcome",
        [
          ["all", "all"],
          ["solved", "solved"],
          ["unsolved", "not solved"],
        ],
        (outcome) => go({ outcome, ...first }),
      ),
      choice(
        "group",
        `group (${all.length ? state.group + 1 : 0} of ${all.length})`,
        all.map((one, index) => [String(index), name(one)]),
        (value) => go({ ...first, group: Number(value) }),
      ),
      make("button", { "data-name": "previous", disabled: state.group === 0, click: () => step(-1) }, "previous"),
      make("button", { "data-name": "next", disabled: state.group >= all.length - 1, click: () => step(1) }, "next"),
    );
  }

  const number = (value) => (value === null ? "–" : value.toFixed(3));
  const outcome = (episode) =>
    make("span", { class: episode.solved ? "good" : "bad" }, episode.solved ? "✓ solved" : "✗ not solved");

  function picture(path, alt) {
    const source = data.images[path];
    return source
      ? make("img", { src: source, alt })
      : make("div", { class: "missing" }, "image not in the run folder");
  }

  function siblingCard(episode, index) {
    const turn = episode.turns[Math.min(state.turn, episode.turns.length - 1)];
    return make(
      "button",
      {
        class: "sibling",
        "data-name": `sibling ${index}`,
        "aria-pressed": String(index === state.sibling),
        click: () => go({ sibling: index }),
      },
      turn && turn.images.length ? picture(turn.images[0], "") : null,
      make("div", null, `sample ${episode.sample}`),
      outcome(episode),
      make("div", null, `total ${number(episode.total)}`),
      episode.advantage === null ? null : make("div", null, `adv. ${number(episode.advantage)}`),
      make("div", { class: "soft" }, `${episode.turns.length} turns`),
    );
  }

  const field = (label, ...content) => make("div", { class: "field" }, make("div", null, label), ...content);
  const text = (value, className) =>
    make("pre", { class: `text ${className || ""}` }, value === "" ? "(empty)" : value);

  function turnBar(episode) {
    const button = (turn, index) =>
      make(
        "button",
        {
          "data-name": `turn ${index}`,
          "aria-label": `turn ${index + 1}`,
          "aria-pressed": String(index === state.turn),
          class: turn.action === null ? "bad" : "",
          click: () => go({ turn: index }),
        },
        String(index + 1),
      );
    return field(
      `turn ${state.turn + 1} of ${episode.turns.length}; red ones held no valid action`,
      make("div", { class: "turns" }, ...episode.turns.map(button)),
    );
  }

  // The text with a mark where each image stands; runs of earlier versions logged no places.
  function shown(turn) {
    const characters = Array.from(turn.text); // of JavaScript's own units, an emoji takes two
    const places = turn.places || [];
    const pieces = places.map((end, index) => {
      return `${characters.slice(places[index - 1] || 0, end).join("")}[image ${index + 1}]`;
    });
    return pieces.join("") + characters.slice(places.at(-1) || 0).join("");
  }

  function turnFields(turn) {
    return [
      field(`reply (${turn.completion_tokens} tokens${turn.truncated ? ", cut off" : ""})`, text(turn.reply, "reply")),
      field("action", turn.action === null ? make("span", { class: "bad" }, "none understood") : text(turn.action)),
      field("feedback", text(turn.feedback)),
      field("observation", text(shown(turn))),
      field("true state", text(JSON.stringify(turn.state))),
    ];
  }

  function episodeView(episode) {
    const turn = episode.turns[state.turn];
    const terms = Object.entries(episode.terms).map(([name, value]) => [
      words(name),
      value === null ? "abstained" : exact(value),
    ]);
    const scores = [...terms, ["total", exact(episode.total)], ["advantage", exact(episode.advantage)]];
    const images = turn
      ? turn.images.map((path, index) => picture(path, `observation ${index + 1} of turn ${state.turn + 1}`))
      : [];
    return make(
      "div",
      { class: "card" },
      make(
        "p",
        null,
        outcome(episode),
        ` · ended: ${words(episode.stop)}${episode.error ? ` (${episode.error})` : ""} · sample ${episode.sample} · step ${episode.step} · ${episode.split} · ${episode.task}`,
      ),
      make(
        "div",
        { class: "episode" },
        make(
          "div",
          { class: "picture" },
          ...(images.length ? images : [make("div", { class: "missing" }, "no image in this turn")]),
        ),
        make(
          "div",
          null,
          ...(turn ? [turnBar(episode), ...turnFields(turn)] : [make("p", null, "This episode has no turns.")]),
          field("scores of the episode", table("", null, scores)),
        ),
      ),
      episode.final_text === null
        ? null
        : make(
            "details",
            null,
            make("summary", null, "last state, drawn by the environment"),
            text(episode.final_text, "drawing"),
          ),
    );
  }

  function draw(all, group) {
    if (!group.length) return [controls(all, group), make("p", null, "No episode passes these filters.")];
    const siblings =
      group.length > 1
        ? make(
            "div",
            { class: "siblings", role: "group", "aria-label": "siblings of the group" },
            ...group.map(siblingCard),
          )
        : null;
    return [controls(all, group), ...(siblings ? [siblings] : []), episodeView(group[state.sibling])];
  }

  addEventListener("keydown", (event) => {
    if (!view.isConnected || event.altKey || event.ctrlKey || event.metaKey || event.target.tagName === "SELECT") return;
    const box = view.getBoundingClientRect();
    if (box.bottom < 0 || box.top > innerHeight) return;
    const moves = {
      ArrowLeft: () => ({ turn: state.turn - 1 }),
      ArrowRight: () => ({ turn: state.turn + 1 }),
      ArrowUp: () => ({ sibling: state.sibling - 1 }),
      ArrowDown: () => ({ sibling: state.sibling + 1 }),
      PageUp: () => ({ group: state.group - 1, sibling: null, turn: 0 }),
      PageDown: () => ({ group: state.group + 1, sibling: null, turn: 0 }),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    go(moves[event.key]());
  });
  go({});
}
