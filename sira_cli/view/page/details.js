// What is known about one picture besides its caption: the other run's text, objects, warnings, settings.

import { button, compared } from "./dom.js";
import { element } from "./element.js";
import { store } from "./store.js";
import { reasoning } from "./texts.js";

export function details(shown, item) {
  const { original, warnings, things, candidates, other } = shown;
  return [
    other ? beside(shown) : null,
    item.edited ? section("Original text", element("p", { className: "first" }, element("bdi", {}, original || "No text"))) : null,
    warnings.length ? section("Warnings", ...warnings.map((warning) => element("p", {}, warning))) : null,
    things.length ? section("Objects", table(things), item.edited ? element("p", { className: "hint" }, "Support was measured for the original text.") : null) : null,
    candidates.length ? section("Looked at first", table(candidates)) : null,
    reasoning(shown.reasoning),
    settings(shown),
  ];
}

function beside({ other, state, differences }) {
  const same = other.text === state.text;
  const text = other.error ? other.error : other.text || "No text";
  const take = button("Take this text", "take", "t");
  return section(
    `In ${store.other}`,
    element("p", { className: "first" }, element("bdi", {}, text)),
    same
      ? element("p", { className: "hint" }, "The same text.")
      : element("div", {}, element("h3", {}, "Differences"), element("p", { className: "first" }, element("bdi", {}, ...compared(differences))),
          element("p", { className: "hint" }, element("del", {}, "only there"), " ", element("ins", {}, "only here"))),
    same || other.error ? null : element("p", {}, take),
  );
}

function table(things) {
  const made = element("table", {}, element("thead", {}, element("tr", {}, cell("th", "Object", "col"), cell("th", "Support", "col"))));
  const body = made.appendChild(element("tbody"));
  for (const { thing, support, low } of things) {
    const value = element("span", {}, support.toFixed(2), low ? element("b", {}, " low") : "");
    body.append(element("tr", { className: low ? "doubtful" : "" }, cell("th", low ? element("mark", { className: "low" }, thing) : thing, "row"), cell("td", value)));
  }
  return made;
}

function cell(tag, content, scope) {
  return element(tag, scope ? { scope } : {}, content);
}

function settings(shown) {
  const rows = Object.entries(shown.settings);
  if (!rows.length) return null;
  const list = element("dl", { className: "settings" }, ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name.replace("_", " ")), element("dd", {}, value))));
  return element("details", {}, element("summary", {}, "How it was made"), list);
}

function section(title, ...children) {
  return element("section", {}, element("h2", {}, title), ...children);
}
