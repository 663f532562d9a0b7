// One picture, large, with its text: to look, to edit, to decide.

import { button, compared, marked, say } from "./dom.js";
import { element } from "./element.js";
import { absent } from "./grid.js";
import { change, store, whole } from "./store.js";

const view = document.getElementById("picture");
let shown = null; // what the server said about the picture that is shown
let number = -1;

export const isOpen = () => !view.hidden;
export const isEditing = () => view.querySelector("textarea") !== null;
export const current = () => number;

// Whether there is a text that would be lost; then it is said so.
export function holds() {
  const field = view.querySelector("textarea");
  if (field === null || field.value.trim() === shown.state.text) return false;
  tell(element("p", {}, "Save your text first, or cancel."));
  field.focus();
  return true;
}

export async function open(which) {
  number = which;
  shown = await whole(which);
  if (number !== which) return; // another one was opened meanwhile
  draw();
  store.last = "";
  view.hidden = false;
  document.getElementById("gallery").hidden = true;
  scrollTo(0, 0);
  view.querySelector("h1").focus({ preventScroll: true });
}

export function close() {
  view.hidden = true;
  view.replaceChildren();
  number = -1;
}

function draw() {
  const item = store.items[number];
  const place = store.shown.indexOf(number);
  view.replaceChildren(
    element(
      "header",
      { className: "head" },
      button("All captions", "back", "Esc", "plain"),
      element("h1", { tabIndex: -1 }, element("bdi", {}, item.name)),
      element(
        "nav",
        { ariaLabel: "Captions" },
        button("Previous", "previous", "←", "plain"),
        element("span", { className: "place" }, place < 0 ? "" : `${place + 1} of ${store.shown.length.toLocaleString("en")}`),
        button("Next", "next", "→", "plain"),
      ),
    ),
    element("div", { className: "sides" }, picture(item), element("div", { className: "said" }, ...said(item))),
  );
}

function picture(item) {
  const box = element("figure", { className: "whole" });
  if (item.missing) {
    box.append(absent(item));
    return box;
  }
  const image = element("img", { alt: `Picture ${item.name}` });
  image.addEventListener("error", () => image.replaceWith(absent({ ...item, missing: false })));
  image.src = `picture/${number}?v=${store.stamp}`;
  box.append(image);
  return box;
}

function said(item) {
  const { state, original, error, warnings, things, other } = shown;
  const undo = button("Undo", "undo", "u");
  undo.disabled = !state.can_undo && !store.done.length;
  const decision = state.decision ? state.decision[0].toUpperCase() + state.decision.slice(1) : "Not yet decided";
  return [
    element(
      "section",
      { className: "caption", aria: { label: "Caption" } },
      element(
        "p",
        { className: "foot" },
        element("span", { className: `state ${state.decision || "open"}` }, decision),
        item.edited ? element("span", { className: "state edited" }, "Edited") : null,
      ),
      error && !item.edited ? element("p", { className: "notice" }, `Failed. ${error}`) : null,
      element("p", { className: state.text ? "words" : "words quiet" }, element("bdi", {}, ...(state.text ? marked(state.text, item.low) : ["No text"]))),
    ),
    element(
      "p",
      { className: "buttons" },
      button("Edit", "edit", "e"),
      button("Accept", "accept", "a"),
      button("Reject", "reject", "r"),
      undo,
      element("span", { className: "done" }, element("bdi", {}, store.last)),
    ),
    element("div", { className: "conflict", role: "alert" }),
    other ? beside(other) : null,
    item.edited ? section("As it came", element("p", { className: "first" }, element("bdi", {}, original || "No text"))) : null,
    warnings.length ? section("Warnings", ...warnings.map((warning) => element("p", {}, warning))) : null,
    things.length ? section("Things", table(things), item.edited ? element("p", { className: "hint" }, "Support was found out for the text as it came.") : null) : null,
    settings(),
  ].filter(Boolean);
}

function beside(other) {
  const same = other.text === shown.state.text;
  const text = other.error ? other.error : other.text || "No text";
  const take = button("Take this text", "take", "t");
  return section(
    `In ${store.other}`,
    element("p", { className: "first" }, element("bdi", {}, text)),
    same
      ? element("p", { className: "hint" }, "The same text.")
      : element("div", {}, element("h3", {}, "Differences"), element("p", { className: "first" }, element("bdi", {}, ...compared(shown.differences))),
          element("p", { className: "hint" }, element("del", {}, "only there"), " ", element("ins", {}, "only here"))),
    same || other.error ? null : element("p", {}, take),
  );
}

function table(things) {
  const made = element("table", {}, element("thead", {}, element("tr", {}, cell("th", "Thing", "col"), cell("th", "Support", "col"))));
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

function settings() {
  const rows = Object.entries(shown.settings);
  if (!rows.length) return null;
  const list = element("dl", { className: "settings" }, ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name.replace("_", " ")), element("dd", {}, value))));
  return element("details", {}, element("summary", {}, "How it was made"), list);
}

function section(title, ...children) {
  return element("section", {}, element("h2", {}, title), ...children);
}

export function edit(text = shown.state.text) {
  const field = element("textarea", { id: "mend", value: text, rows: 6, spellcheck: true, maxLength: 100000 });
  const form = element(
    "div",
    { className: "editing" },
    element("label", { htmlFor: "mend", className: "unseen" }, "Caption"),
    field,
    element("p", { className: "buttons" }, button("Save", "save", "Ctrl+Enter", "button main"), button("Cancel", "cancel", "Esc")),
  );
  view.querySelector(".caption .words, .editing").replaceWith(form);
  view.querySelector(".said > .buttons").hidden = true;
  field.focus();
}

export function cancel() {
  draw();
  view.querySelector("h1").focus({ preventScroll: true });
}

export function save() {
  return send({ text: view.querySelector("textarea").value });
}

export const take = () => (shown.other && !shown.other.error ? send({ text: shown.other.text }) : false);

// Sends a change; returns whether it was made. A newer version from elsewhere is shown beside this one.
export async function send(what) {
  try {
    shown = await change(number, what);
  } catch (error) {
    if (!error.now) {
      tell(element("p", {}, error.message));
      return false;
    }
    conflict(what, error.now);
    return false;
  }
  cancel();
  return true;
}

function conflict(what, now) {
  const own = what.text ?? shown.state.text;
  const mine = { text: own, ...(what.decision === undefined ? {} : { decision: what.decision }) };
  store.items[number] = now.brief;
  shown = now;
  draw();
  const both = [["There now", now.state], ["Yours", { text: own, decision: what.decision ?? now.state.decision }]];
  tell(
    element("p", {}, element("b", {}, "This caption was changed elsewhere meanwhile."), " Yours was not saved yet."),
    ...both.map(([title, state]) => element("div", {}, element("h3", {}, state.decision ? `${title} (${state.decision})` : title), element("p", {}, element("bdi", {}, state.text)))),
    element("p", { className: "buttons" }, button("Keep what is there", "keep"), what.undo ? null : button("Save yours", "again")),
  );
  view.querySelector(".conflict").again = () => send(mine);
  view.querySelector(".conflict button").focus();
}

export const again = () => view.querySelector(".conflict").again();

export function tell(...children) {
  const place = view.querySelector(".conflict");
  place.classList.add("notice");
  place.replaceChildren(...children);
  say(place.textContent);
}
