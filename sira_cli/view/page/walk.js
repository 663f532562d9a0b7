// Which of the two views is shown, and the way from picture to picture.

import { counted, say } from "./dom.js";
import * as grid from "./grid.js";
import * as picture from "./picture.js";
import { choose, store } from "./store.js";

const field = (id) => document.getElementById(id);

export function update({ keep = true } = {}) {
  if (!keep) store.current = 0;
  choose({ words: field("words").value, filter: field("filter").value, sort: field("sort").value, keep });
  count();
  grid.draw();
  if (!keep) scrollTo(0, 0);
}

export function count() {
  const all = store.items.length;
  const captions = counted(all, "caption");
  const decided = store.items.filter((item) => item.decision).length;
  field("count").textContent = store.shown.length === all ? captions : `${store.shown.length.toLocaleString("en")} of ${captions}`;
  field("progress").textContent = `${decided.toLocaleString("en")} of ${all.toLocaleString("en")} decided`;
  field("bar").max = all;
  field("bar").value = decided;
  document.querySelector("#gallery [data-do=undo]").disabled = !store.done.length;
  document.querySelector("#gallery [data-do=redo]").disabled = !store.undone.length;
}

// The address says what is shown: nothing, or the number of a picture, from 1.
export async function follow() {
  if (picture.holds()) return history.pushState(null, "", `#${picture.current() + 1}`);
  const number = Number(location.hash.slice(1)) - 1;
  if (!(number in store.items)) return leave();
  const place = store.shown.indexOf(number);
  if (place >= 0) store.current = place;
  return picture.open(number);
}

export function leave() {
  const left = picture.isOpen() ? picture.current() : undefined;
  picture.close();
  field("gallery").hidden = false;
  update();
  if (left === undefined) return;
  const place = store.shown.indexOf(left); // it may not fit the filter any more
  grid.go(place < 0 ? store.current : place);
}

export function back() {
  if (picture.holds()) return;
  history.pushState(null, "", location.pathname);
  leave();
}

export async function turn(by) {
  if (picture.holds()) return undefined;
  const place = store.shown.indexOf(picture.current());
  const next = store.shown[place + by];
  if (next === undefined) return say(by > 0 ? "This is the last one." : "This is the first one.");
  store.current = place + by;
  return show(next);
}

// Opens a picture, in place of the one that is shown, if there is one.
export function show(number) {
  const keep = picture.isOpen() ? history.replaceState : history.pushState;
  keep.call(history, null, "", `#${number + 1}`);
  return picture.open(number);
}

// Opens the card in sight that is the current one.
export const enter = () => store.shown.length && show(store.shown[grid.inSight()]);

// Goes on to the next picture without a decision, from the first one again after the last one.
export async function undecided() {
  if (picture.isOpen() && picture.holds()) return undefined;
  const all = store.shown.length;
  const from = picture.isOpen() ? store.shown.indexOf(picture.current()) : store.current;
  for (let step = 1; step <= all; step += 1) {
    const place = (from + step) % all;
    if (store.items[store.shown[place]].decision) continue;
    store.current = picture.isOpen() ? place : store.current;
    return picture.isOpen() ? show(store.shown[place]) : grid.go(place);
  }
  return say("All of these are decided.");
}
