// The start: fetches and shows the captions.

import { button, counted } from "./dom.js";
import { element } from "./element.js";
import * as grid from "./grid.js";
import { glance, perform } from "./keys.js";
import { FILTERS, now, SORTS, store } from "./store.js";
import { follow, renew, update } from "./walk.js";

const KEYS = [
  ["← → ↑ ↓", "next and previous"], ["Enter", "open"], ["Esc", "back, or leave the field"], ["n", "next without a decision"],
  ["e", "edit"], ["Ctrl+Enter", "save"], ["a", "accept, and go on"], ["r", "reject, and go on"], ["u", "undo the last change"],
  ["U", "redo it"], ["t", "take the other text"], ["/", "search"], ["?", "these keys"],
];
const field = (id) => document.getElementById(id);

function settle() {
  document.title = store.other ? `${store.title} and ${store.other}` : store.title;
  document.querySelector("#gallery h1").textContent = store.title;
  const options = (rows) => Object.entries(rows).filter(([, row]) => row[1]?.() ?? true);
  for (const [id, rows] of [["filter", FILTERS], ["sort", SORTS]])
    field(id).replaceChildren(...options(rows).map(([value, [title]]) => element("option", { value }, title)));
  document.getElementById("cards").classList.toggle("comparing", store.other !== null);
  document.querySelector(".kept").textContent = `Changes are kept in ${store.edits}`;
  document.querySelector("#help dl").replaceChildren(
    ...KEYS.filter(([key]) => key !== "t" || store.other).map(([key, what]) => element("div", {}, element("dt", {}, element("kbd", {}, key)), element("dd", {}, what))),
  );
}

function note() {
  const notes = [
    store.done < 1 && `${Math.floor(100 * store.done)} % are read`,
    store.trouble,
    store.other && `compared with ${store.other}`,
    store.broken && `${counted(store.broken, "broken line")} left out`,
    store.missing && `${counted(store.missing, "picture is", "pictures are")} missing`,
  ].filter(Boolean);
  document.querySelector(".notes").textContent = notes.join(" · ");
}

const PAUSE = 3000; // ms between two looks at the server
const READING = 1000; // while captions are read
let watching = 0;

function watch() {
  clearTimeout(watching);
  watching = setTimeout(look, store.done < 1 ? READING : PAUSE);
}

function look() {
  if (document.hidden) return watch();
  return glance(async () => {
    const news = await now();
    note();
    if (news.records || news.changes) await renew(news);
  }).then(watch);
}

let typed = 0;
field("words").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => perform(() => update({ keep: false })), 120);
});
for (const id of ["filter", "sort"]) field(id).addEventListener("change", () => perform(() => update({ keep: false })));
document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  perform(async () => {
    await update({ keep: false });
    grid.go(0);
  });
});
addEventListener("hashchange", () => perform(follow));
addEventListener("visibilitychange", () => document.hidden || look());
addEventListener("focus", () => document.hidden || look());

try {
  await now();
  settle();
  note();
  await update();
  await follow();
  watch();
} catch (error) {
  document.querySelector("main").replaceChildren(element("p", { className: "notice" }, error.message), button("Try again", "reload"));
}
document.documentElement.classList.add("script");
