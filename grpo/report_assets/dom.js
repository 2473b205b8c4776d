"use strict";
// Elements from tag, attributes and children. Strings become text nodes, never markup: much of what is shown here was
// written by a model.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function table(className, columns, rows) {
  const line = (cells, tag) => make("tr", null, ...cells.map((cell) => make(tag, null, String(cell))));
  const head = columns ? make("thead", null, line(columns, "th")) : null;
  return make(
    "div",
    { class: "scroll" },
    make("table", { class: className }, head, make("tbody", null, ...rows.map((row) => line(row, "td")))),
  );
}

const words = (name) => name.replaceAll("_", " ");
