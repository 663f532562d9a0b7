// Actions of keys and buttons.

import { decide, decideCard, redo, undo } from "./decide.js";
import { say } from "./dom.js";
import * as grid from "./grid.js";
import * as picture from "./picture.js";
import { store } from "./store.js";
import { back, enter, turn, undecided } from "./walk.js";

const help = document.getElementById("help");
const words = document.getElementById("words");

const ACTIONS = {
  back,
  previous: () => turn(-1),
  next: () => turn(1),
  undecided,
  edit: async () => {
    if (!picture.isOpen()) await enter();
    if (picture.isOpen()) picture.edit();
  },
  accept: () => decide("accepted"),
  reject: () => decide("rejected"),
  undo,
  redo,
  take: async () => (await picture.takeOther()) && say("Taken over."),
  save: async () => (await picture.save()) && say("Saved."),
  "save-draft": async () => (await picture.saveDraft()) && say("Saved."),
  cancel: picture.cancel,
  discard: picture.discard,
  again: async () => (await picture.saveAgain()) && say("Saved."),
  help: () => help.showModal(),
  "close-help": () => help.close(),
  reload: () => location.reload(),
};
const ON_CARDS = { accept: "accepted", reject: "rejected" };
const SINGLE = { e: "edit", a: "accept", r: "reject", u: "undo", U: "redo", n: "undecided", "?": "help" };
const LARGE = { ArrowLeft: "previous", ArrowRight: "next", Escape: "back", t: "take" };

document.addEventListener("click", (event) => {
  const action = event.target.closest("[data-do]")?.dataset.do;
  const card = event.target.closest(".card");
  if (action) perform(card ? () => decideCard(Number(card.dataset.place), ON_CARDS[action]) : ACTIONS[action]);
});

// One after the other: fast typing applies to the next picture.
let before = Promise.resolve();
export function perform(action) {
  before = before.then(action).then(() => trouble(""), (error) => trouble(error.message));
  return before;
}

// The same for automatic requests: it hides only messages of such requests.
export function glance(action) {
  before = before.then(action).then(() => place.dataset.by === "glance" && trouble(""), (error) => trouble(error.message, "glance"));
  return before;
}

const place = document.getElementById("trouble");
function trouble(message, by = "") {
  place.textContent = message;
  place.hidden = !message;
  place.dataset.by = by;
}

addEventListener("keydown", (event) => {
  if (help.open) return undefined; // it has keys of its own
  const typing = event.target.matches("input, textarea, select");
  if (picture.isEditing() && event.key === "Enter" && (event.ctrlKey || event.metaKey)) return act(event, ACTIONS.save);
  if (event.key === "Escape" && picture.isEditing()) return act(event, ACTIONS.cancel);
  if (event.key === "Escape" && typing) return act(event, () => grid.go(grid.inSight()));
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return undefined;
  if (picture.isOpen() && event.key in LARGE) return act(event, ACTIONS[LARGE[event.key]]);
  if (picture.asks() && event.key in SINGLE) return undefined; // somebody types on: nothing is decided by that
  if (event.key in SINGLE) return act(event, ACTIONS[SINGLE[event.key]]);
  if (event.key === "/" && !picture.isOpen()) return act(event, () => words.focus());
  if (picture.isOpen()) return undefined;
  if (event.key === "Enter" && (event.target === document.body || event.target.closest(".card > a"))) return act(event, enter);
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.across(), ArrowDown: grid.across(), Home: -Infinity, End: Infinity };
  return event.key in steps ? act(event, () => grid.go(grid.inSight() + steps[event.key])) : undefined;
});

function act(event, action) {
  event.preventDefault();
  perform(action);
}

addEventListener("beforeunload", (event) => picture.isOpen() && picture.waits() && event.preventDefault());
