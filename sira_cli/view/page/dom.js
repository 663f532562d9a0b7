// Parts of both views: buttons, counts, texts with marks.

import { element } from "./element.js";
import { cut } from "./texts.js";

export function button(text, action, key, className = "button") {
  const made = element("button", { type: "button", className, data: { do: action } }, text);
  if (key) {
    made.append(element("kbd", { ariaHidden: "true" }, key));
    made.setAttribute("aria-keyshortcuts", key);
  }
  return made;
}

export function say(text) {
  document.getElementById("status").textContent = text;
}

export function counted(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

// A text, its spans marked.
export function marked(text, spans = []) {
  return cut(text, spans, (piece, start) => (spans.some(([first, last]) => first <= start && start < last) ? lowMark(piece) : piece));
}

function lowMark(text) {
  return element("mark", { className: "low" }, text, element("span", { className: "unseen" }, " (low support)"));
}

// Stretches of two texts: `[both]`, or `[of the other, of this one]`.
export function compared(stretches) {
  return stretches.flatMap((stretch) => {
    if (stretch.length === 1) return [stretch[0]];
    const [other, own] = stretch;
    return [
      ...(other ? [spaceOf(other), element("del", {}, other.trim())] : []),
      ...(own ? [spaceOf(own), element("ins", {}, own.trim())] : []),
    ];
  });
}

function spaceOf(text) {
  return text.slice(0, text.length - text.trimStart().length);
}
