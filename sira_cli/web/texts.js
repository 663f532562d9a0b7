// Texts of a model, for the page of `sira serve`. They are inserted as text only.

import { element } from "./element.js";

// A text in pieces, cut where spans begin and end; `make` turns a piece, with its start and end, into a node or a string.
// Places are counted in characters, as Python does; JavaScript's strings may need two units for one.
export function cut(text, spans, make) {
  const letters = [...text];
  const places = [...new Set([0, letters.length, ...spans.flat()])].sort((one, other) => one - other);
  return places.slice(1).map((end, at) => make(letters.slice(places[at], end).join(""), places[at], end));
}

// What the second look does not support, as a sentence for those who do not see the marks; empty without any.
export function unsure(names) {
  return names.length ? `Unsure: ${names.join(", ")}.` : "";
}

// The model's reasoning before a text, folded; null without any.
export function reasoning(text) {
  return text ? element("details", { className: "reasoning" }, element("summary", {}, "Reasoning"), element("p", { dir: "auto" }, text)) : null;
}
