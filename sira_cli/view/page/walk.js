// Switches between the two views, and from picture to picture.

import { counted, say } from "./dom.js";
import * as grid from "./grid.js";
import * as picture from "./picture.js";
import { choose, isDecided, need, store } from "./store.js";

const FIRST = 60; // cards that are asked for before they are shown
const field = (id) => document.getElementById(id);

// Fetches the list of captions, and shows them.
export async function update({ keep = true, changed = false } = {}) {
  const query = { words: field("words").value, filter: field("filter").value, sort: field("sort").value };
  if (!(await choose(query, keep))) return;
  if (!keep) store.current = 0;
  await need([...store.shown.subarray(store.current, store.current + FIRST)]);
  count();
  grid.draw(changed);
  if (!keep) scrollTo(0, 0);
}

// Shows changes: captions that came or went, edits of other windows.
export async function renew({ records }) {
  if (picture.isOpen()) return picture.renew();
  if (records) await update({ changed: true });
  count();
  return grid.renew();
}

export function count() {
  const { decided, shown } = store;
  const total = Math.max(store.total, shown.length); // more may be read since they were counted
  const captions = counted(total, "caption");
  field("count").textContent = shown.length === total ? captions : `${shown.length.toLocaleString("en")} of ${captions}`;
  field("progress").textContent = `${decided.toLocaleString("en")} of ${total.toLocaleString("en")} decided`;
  field("bar").max = total;
  field("bar").value = decided;
  document.querySelector("#gallery [data-do=undo]").disabled = !store.steps.length;
  document.querySelector("#gallery [data-do=redo]").disabled = !store.undone.length;
}

// The address holds the number of the shown picture, from 1, or nothing.
export async function follow() {
  if (picture.holds()) return history.pushState(null, "", `#${picture.current() + 1}`);
  const number = Number(location.hash.slice(1)) - 1;
  if (!(number >= 0)) return leave();
  const place = store.shown.indexOf(number);
  if (place >= 0) store.current = place;
  try {
    return await picture.open(number);
  } catch (error) {
    if (error.status === undefined) throw error;
    history.replaceState(null, "", location.pathname);
    await leave();
    throw error;
  }
}

export async function leave() {
  const left = picture.isOpen() ? picture.current() : undefined;
  picture.close();
  field("gallery").hidden = false;
  await update();
  if (left === undefined) return;
  const place = store.shown.indexOf(left); // it may not fit the filter any more
  grid.go(place < 0 ? store.current : place);
}

export function back() {
  if (picture.holds()) return undefined;
  history.pushState(null, "", location.pathname);
  return leave();
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
  const from = picture.isOpen() ? store.shown.indexOf(picture.current()) : store.current;
  const open = (place) => !isDecided(place);
  const later = store.shown.findIndex((number, place) => place > from && open(place));
  const place = later >= 0 ? later : store.shown.findIndex((number, place) => place !== from && open(place));
  if (place < 0) return say("All of these are decided.");
  if (!picture.isOpen()) return grid.go(place);
  store.current = place;
  return show(store.shown[place]);
}
