// What keys and buttons do, and which of the two views is shown.

import { button, counted, say } from "./dom.js";
import { element } from "./element.js";
import * as grid from "./grid.js";
import * as picture from "./picture.js";
import { change, choose, FILTERS, load, SORTS, store } from "./store.js";

const KEYS = [
  ["← → ↑ ↓", "next and previous"], ["Enter", "open"], ["Esc", "back, or leave the field"], ["e", "edit"],
  ["Ctrl+Enter", "save"], ["a", "accept, and go on"], ["r", "reject, and go on"], ["u", "undo the last change"],
  ["t", "take the other text"], ["/", "search"], ["?", "these keys"],
];
const gallery = document.getElementById("gallery");
const field = (id) => document.getElementById(id);

function update({ keep = true } = {}) {
  if (!keep) store.current = 0;
  choose({ words: field("words").value, filter: field("filter").value, sort: field("sort").value, keep });
  count();
  grid.draw();
  if (!keep) scrollTo(0, 0);
}

function count() {
  const all = store.items.length;
  const [one, many] = ["caption", "captions"];
  field("count").textContent =
    store.shown.length === all ? counted(all, one, many) : `${store.shown.length.toLocaleString("en")} of ${counted(all, one, many)}`;
  const decided = store.items.filter((item) => item.decision).length;
  if (decided) field("count").textContent += `, ${decided.toLocaleString("en")} decided`;
}

function settle() {
  document.title = store.other ? `${store.title} and ${store.other}` : store.title;
  document.querySelector("#gallery h1").textContent = store.title;
  const notes = [
    store.other && `compared with ${store.other}`,
    store.broken && `${counted(store.broken, "broken line")} left out`,
    store.missing && `${counted(store.missing, "picture is", "pictures are")} missing`,
  ].filter(Boolean);
  document.querySelector(".notes").textContent = notes.join(" · ");
  const options = (rows) => Object.entries(rows).filter(([, row]) => row[2]?.() ?? true);
  for (const [id, rows] of [["filter", FILTERS], ["sort", SORTS]])
    field(id).replaceChildren(...options(rows).map(([value, [title]]) => element("option", { value }, title)));
  document.getElementById("cards").classList.toggle("comparing", store.other !== null);
  document.querySelector(".kept").textContent = `Changes are kept in ${store.edits}`;
  document.querySelector("#help dl").replaceChildren(
    ...KEYS.filter(([key]) => key !== "t" || store.other).map(([key, what]) => element("div", {}, element("dt", {}, element("kbd", {}, key)), element("dd", {}, what))),
  );
}

// The address says what is shown: nothing, or the number of a picture, from 1.
async function follow() {
  if (picture.holds()) return history.pushState(null, "", `#${picture.current() + 1}`);
  const number = Number(location.hash.slice(1)) - 1;
  if (!(number in store.items)) return leave();
  const place = store.shown.indexOf(number);
  if (place >= 0) store.current = place;
  return picture.open(number);
}

function leave() {
  const left = picture.isOpen() ? picture.current() : undefined;
  picture.close();
  gallery.hidden = false;
  update();
  if (left === undefined) return;
  const place = store.shown.indexOf(left); // it may not fit the filter any more
  grid.go(place < 0 ? store.current : place);
}

async function turn(by) {
  if (picture.holds()) return undefined;
  const place = store.shown.indexOf(picture.current());
  const next = store.shown[place + by];
  if (next === undefined) return say(by > 0 ? "This is the last one." : "This is the first one.");
  store.current = place + by;
  return show(next);
}

// Opens a picture, in place of the one that is shown, if there is one.
function show(number) {
  const keep = picture.isOpen() ? history.replaceState : history.pushState;
  keep.call(history, null, "", `#${number + 1}`);
  return picture.open(number);
}

async function decide(decision) {
  const name = decision === "accepted" ? "Accepted." : "Rejected.";
  if (picture.isOpen()) {
    if (!(await picture.send({ decision }))) return;
    say(name);
    store.last = `${name.slice(0, -1)}: ${store.items[picture.current()].name.split("/").at(-1)}`;
    await turn(1);
    return;
  }
  const number = store.shown[store.current];
  if (number === undefined || !(await attempt(number, { decision }))) return;
  say(name);
  grid.go(store.current + 1);
}

// A change from the gallery; where that fails, the picture is opened, which can say why.
async function attempt(number, what) {
  try {
    await change(number, what);
    grid.redraw(number);
    count();
    return true;
  } catch (error) {
    await show(number);
    picture.tell(element("p", {}, error.now ? "This caption was changed elsewhere meanwhile. Look at it, and decide again." : error.message));
    return false;
  }
}

async function undo() {
  const last = store.done.pop();
  const number = last ?? (picture.isOpen() ? picture.current() : store.shown[store.current]);
  if (number === undefined) return;
  if (picture.isOpen()) {
    if (picture.current() !== number) await show(number);
    if (await picture.send({ undo: true })) say("Undone.");
  } else if (await attempt(number, { undo: true })) {
    const place = store.shown.indexOf(number);
    if (place >= 0) grid.go(place);
    say("Undone.");
  }
}

const ACTIONS = {
  back: () => {
    if (picture.holds()) return;
    history.pushState(null, "", location.pathname);
    leave();
  },
  previous: () => turn(-1),
  next: () => turn(1),
  edit: async () => {
    if (!picture.isOpen()) {
      if (!store.shown.length) return;
      await show(store.shown[store.current]);
    }
    picture.edit();
  },
  accept: () => decide("accepted"),
  reject: () => decide("rejected"),
  undo,
  take: async () => (await picture.take()) && say("Taken over."),
  save: async () => (await picture.save()) && say("Saved."),
  cancel: picture.cancel,
  keep: picture.cancel,
  again: async () => (await picture.again()) && say("Saved."),
  help: () => field("help").showModal(),
  "close-help": () => field("help").close(),
};

document.addEventListener("click", (event) => {
  const action = event.target.closest("[data-do]")?.dataset.do;
  if (action) perform(ACTIONS[action]);
});

// One after the other: who types fast means the picture that comes next.
let before = Promise.resolve();
function perform(action) {
  const trouble = field("trouble");
  before = before.then(action).then(() => (trouble.hidden = true)).catch((error) => {
    trouble.textContent = error.message;
    trouble.hidden = false;
  });
}

const SINGLE = { e: "edit", a: "accept", r: "reject", u: "undo", "?": "help" };
const LARGE = { ArrowLeft: "previous", ArrowRight: "next", Escape: "back", t: "take" };

addEventListener("keydown", (event) => {
  if (field("help").open) return; // it has keys of its own
  const typing = event.target.matches("input, textarea, select");
  if (picture.isEditing() && event.key === "Enter" && (event.ctrlKey || event.metaKey)) return act(event, ACTIONS.save);
  if (event.key === "Escape" && picture.isEditing()) return act(event, ACTIONS.cancel);
  if (event.key === "Escape" && typing) return act(event, () => grid.go(store.current));
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return undefined;
  if (picture.isOpen() && event.key in LARGE) return act(event, ACTIONS[LARGE[event.key]]);
  if (event.key in SINGLE) return act(event, ACTIONS[SINGLE[event.key]]);
  if (event.key === "/" && !picture.isOpen()) return act(event, () => field("words").focus());
  if (picture.isOpen()) return undefined;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.across(), ArrowDown: grid.across(), Home: -Infinity, End: Infinity };
  return event.key in steps ? act(event, () => grid.go(store.current + steps[event.key])) : undefined;
});

function act(event, action) {
  event.preventDefault();
  perform(action);
}

let typed = 0;
field("words").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => update({ keep: false }), 120);
});
for (const id of ["filter", "sort"]) field(id).addEventListener("change", () => update({ keep: false }));
document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  update({ keep: false });
  grid.go(0);
});
addEventListener("beforeunload", (event) => picture.isOpen() && picture.holds() && event.preventDefault());
addEventListener("hashchange", () => perform(follow));

try {
  await load();
  settle();
  update();
  await follow();
} catch (error) {
  document.querySelector("main").replaceChildren(element("p", { className: "notice" }, error.message), button("Try again", "reload"));
  ACTIONS.reload = () => location.reload();
}
document.documentElement.classList.add("script");
