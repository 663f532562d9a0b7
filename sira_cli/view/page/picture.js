// One picture, large, with its text: to look, to edit, to decide.

import { details } from "./details.js";
import { button, marked, say } from "./dom.js";
import { draft, dropDraft, keepDraft } from "./drafts.js";
import { element } from "./element.js";
import { absent } from "./grid.js";
import { change, store, take, whole } from "./store.js";
import { unsure } from "./texts.js";

const view = document.getElementById("picture");
let shown = null; // what the server said about the picture that is shown
let number = -1;
let again = null; // saves what a conflict stopped, all the same

export const isOpen = () => !view.hidden;
export const isEditing = () => view.querySelector("textarea") !== null;
export const current = () => number;
// Whether a conflict waits for an answer.
export const asks = () => again !== null;

// Whether a typed text, or a conflict, waits for an answer.
export const waits = () => asks() || typed() !== null;

function typed() {
  const field = view.querySelector("textarea");
  return field === null || field.value.trim() === shown.state.text ? null : field;
}

// Whether a text must be saved first; shows a hint if so.
export function holds() {
  const field = typed();
  if (field === null) return false;
  tell(element("p", {}, "Save your text first, or cancel."));
  field.focus();
  return true;
}

export async function open(which) {
  number = which;
  const found = await whole(which);
  if (number !== which) return; // another one was opened meanwhile
  shown = found;
  draw();
  store.last = "";
  view.hidden = false;
  document.getElementById("gallery").hidden = true;
  scrollTo(0, 0);
  view.querySelector("h1").focus({ preventScroll: true });
}

// Shows changes of the picture, unless the user is typing or has a question to answer.
export async function renew() {
  if (isEditing() || waits() || view.querySelector(".conflict").hasChildNodes()) return;
  const which = number;
  const found = await whole(which);
  if (which !== number || isEditing() || JSON.stringify(found) === JSON.stringify(shown)) return;
  shown = found;
  const focused = view.contains(document.activeElement) && document.activeElement.dataset.do;
  draw();
  (focused && view.querySelector(`[data-do=${focused}]`) || view.querySelector("h1")).focus({ preventScroll: true });
}

export function close() {
  view.hidden = true;
  view.replaceChildren();
  number = -1;
  again = null;
}

function draw() {
  const item = store.items.get(number);
  const place = store.shown.indexOf(number);
  again = null;
  view.replaceChildren(
    element(
      "header",
      { className: "head" },
      button("All captions", "back", "Esc", "plain"),
      element("h1", { tabIndex: -1, aria: { describedby: "caption unsure" } }, element("bdi", {}, item.name)),
      element(
        "nav",
        { ariaLabel: "Captions" },
        button("Previous", "previous", "←", "plain"),
        element("span", { className: "place" }, place < 0 ? "" : `${place + 1} of ${store.shown.length.toLocaleString("en")}`),
        button("Next", "next", "→", "plain"),
        button("Next undecided", "undecided", "n", "plain"),
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
  const { state, error, things } = shown;
  const low = item.edited ? [] : things.filter((one) => one.low).map((one) => one.thing);
  const undo = button("Undo", "undo", "u");
  const redo = button("Redo", "redo", "U");
  undo.disabled = !state.can_undo && !store.steps.length;
  redo.disabled = !state.can_redo && !store.undone.length;
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
      element("p", { id: "caption", className: state.text ? "words" : "words quiet" }, element("bdi", {}, ...(state.text ? marked(state.text, item.low) : ["No text"]))),
      element("p", { id: "unsure", className: "unseen" }, unsure(low)),
    ),
    element(
      "p",
      { className: "buttons deciding" },
      button("Edit", "edit", "e"),
      button("Accept", "accept", "a"),
      button("Reject", "reject", "r"),
      undo,
      redo,
      element("span", { className: "done" }, element("bdi", {}, store.last)),
    ),
    element("div", { className: "conflict", role: "alert" }),
    offered(state),
    ...details(shown, item),
  ].filter(Boolean);
}

// A text typed earlier and not saved.
function offered(state) {
  const kept = draft(number);
  if (kept === null || kept.text.trim() === state.text) return null;
  return element(
    "section",
    { className: "draft notice", aria: { label: "Your text" } },
    element("h2", {}, "Your text is not saved"),
    kept.version === state.version ? null : element("p", {}, "The caption was changed since you wrote it."),
    element("p", { className: "first" }, element("bdi", {}, kept.text)),
    element("p", { className: "buttons" }, button("Edit it", "edit", "e"), button("Save it", "save-draft"), button("Discard it", "discard")),
  );
}

export function edit() {
  if (isEditing()) return;
  const field = element("textarea", { id: "mend", value: draft(number)?.text ?? shown.state.text, rows: 6, spellcheck: true, maxLength: 100000 });
  const form = element(
    "div",
    { className: "editing" },
    element("label", { htmlFor: "mend", className: "unseen" }, "Caption"),
    field,
    element("p", { className: "buttons" }, button("Save", "save", "Ctrl+Enter", "button main"), button("Cancel", "cancel", "Esc")),
  );
  field.addEventListener("input", () => (typed() ? keepDraft(number, field.value, shown.state.version) : dropDraft(number)));
  view.querySelector(".caption .words").replaceWith(form);
  view.querySelector(".said > .buttons").hidden = true;
  view.querySelector(".draft")?.remove();
  field.focus();
}

// Leaves the field, or the question; a typed text is kept, and offered.
export function cancel() {
  draw();
  view.querySelector("h1").focus({ preventScroll: true });
}

export function discard() {
  dropDraft(number);
  cancel();
}

export const save = () => send({ text: view.querySelector("textarea").value });
export const saveDraft = () => send({ text: draft(number).text });
export const saveAgain = () => again();
export const takeOther = () => (shown.other && !shown.other.error ? send({ text: shown.other.text }) : false);

// Sends a change; returns whether it was made. A newer version from elsewhere is shown next to this one.
export async function send(what) {
  try {
    shown = await change(number, what);
  } catch (error) {
    if (error.now) conflict(what, error.now);
    else tell(element("p", {}, error.message));
    return false;
  }
  if (what.text !== undefined) dropDraft(number);
  cancel();
  return true;
}

function conflict(what, now) {
  const own = what.text ?? shown.state.text;
  const mine = { text: own, ...(what.decision === undefined ? {} : { decision: what.decision }) };
  if (what.text !== undefined) keepDraft(number, own, shown.state.version);
  take(number, now);
  shown = now;
  draw();
  view.querySelector(".draft")?.remove(); // it stands in the question
  const both = [["Saved", now.state], ["Yours", { text: own, decision: what.decision ?? now.state.decision }]];
  const step = what.undo || what.redo;
  tell(
    element("p", {}, element("b", {}, "This caption was changed elsewhere meanwhile."), " Your version is not saved yet."),
    ...both.map(([title, state]) => element("div", {}, element("h3", {}, state.decision ? `${title} (${state.decision})` : title), element("p", {}, element("bdi", {}, state.text)))),
    element("p", { className: "buttons" }, button("Keep the saved one", "discard"), step ? null : button("Save yours", "again")),
  );
  if (!step) again = () => send(mine);
  const place = view.querySelector(".conflict"); // not one of its buttons: Enter, typed on, must not drop a text
  place.tabIndex = -1;
  place.focus();
}

export function tell(...children) {
  const place = view.querySelector(".conflict");
  place.classList.add("notice");
  place.replaceChildren(...children);
  say(place.textContent);
}
