// The gallery: of any number of cards those are in the document that can be seen, and a few rows around them.

import { button, compared, marked } from "./dom.js";
import { draft } from "./drafts.js";
import { element } from "./element.js";
import * as long from "./long.js";
import { again, at, differences, need, store } from "./store.js";

const AROUND = 2; // rows above and below
const SETTLED = 90; // ms without scrolling until pictures are asked for
const DECISIONS = { accepted: "Accepted", rejected: "Rejected" };

const list = document.getElementById("cards");
const cards = new Map(); // by place in `store.shown`
let columns = 1;
let height = 1; // of a row, with its gap
let timer = 0;
let loading = false;

// `changed`: only cards of other captions than before are made again.
export function draw(changed = false) {
  const focused = list.contains(document.activeElement);
  for (const [place, card] of cards) {
    if (changed && Number(card.dataset.number) === store.shown[place]) continue;
    card.remove();
    cards.delete(place);
  }
  const empty = document.querySelector(".empty");
  empty.hidden = store.shown.length > 0;
  empty.textContent = store.done < 1 ? "The captions are being read." : "No caption matches.";
  measure();
  fill();
  if (focused && !list.contains(document.activeElement)) cards.get(store.current)?.firstChild.focus({ preventScroll: true });
}

function measure() {
  const style = getComputedStyle(list);
  const pixels = (name) => parseFloat(style.getPropertyValue(name)) * parseFloat(getComputedStyle(document.documentElement).fontSize);
  const [least, gap] = [pixels("--card-width"), pixels("--gap")];
  const width = list.clientWidth;
  columns = Math.max(1, Math.floor((width + gap) / (least + gap)));
  height = pixels(list.classList.contains("comparing") ? "--card-height-compared" : "--card-height") + gap;
  list.style.setProperty("--across", String((width + gap) / columns - gap));
  list.style.setProperty("--step", String((width + gap) / columns));
  long.measure(Math.ceil(store.shown.length / columns) * height);
}

function fill() {
  const top = -long.origin();
  const first = Math.max(0, Math.floor(top / height) - AROUND) * columns;
  const last = Math.min(store.shown.length, (Math.ceil((top + innerHeight) / height) + AROUND) * columns);
  for (const [place, card] of cards) {
    if (place < first || place >= last) {
      card.remove();
      cards.delete(place);
    }
  }
  let after = null; // what is read aloud stands in order
  for (let place = last - 1; place >= first; place -= 1) {
    if (!cards.has(place)) {
      cards.set(place, card(place));
      list.insertBefore(cards.get(place), after);
    }
    after = cards.get(place);
    after.style.top = `${long.top(Math.floor(place / columns) * height)}px`;
  }
  clearTimeout(timer);
  timer = setTimeout(settle, SETTLED);
  load();
}

// Fetches the content of waiting cards, one request at a time.
async function load() {
  if (loading) return;
  loading = true;
  const waits = () => [...cards.entries()].filter(([, card]) => card.classList.contains("waiting")).map(([place]) => place);
  try {
    for (let places = waits(); places.length; places = waits()) {
      await need(places.map((place) => store.shown[place]));
      for (const place of places) if (cards.has(place) && at(place)) remake(place);
    }
    clearTimeout(timer);
    timer = setTimeout(settle, SETTLED);
  } catch {
    // the next request shows the reason
  } finally {
    loading = false;
  }
}

// Fetches the visible cards again: they may have changed.
export async function renew() {
  const numbers = [...cards.keys()].map((place) => store.shown[place]);
  for (const number of await again(numbers)) redraw(number);
}

function card(place) {
  const number = store.shown[place];
  const item = at(place);
  if (!item) return waiting(place);
  const shown = element("div", { className: "thumb" });
  if (item.missing || item.broken) shown.append(absent(item));
  const state = [
    item.decision && element("span", { className: `state ${item.decision}` }, DECISIONS[item.decision]),
    item.edited && element("span", { className: "state edited" }, "Edited"),
    draft(number) && element("span", { className: "state doubt" }, "Not saved"),
    item.error && element("span", { className: "state wrong" }, "Error"),
    item.warnings && element("span", { className: "state doubt" }, "Warning"),
    item.support !== undefined && !item.edited && !item.decision && support(item),
  ].filter(Boolean);
  const text = item.error ? [item.error] : item.text ? marked(item.text, item.low) : ["No text"];
  const link = element(
    "a",
    { href: `#${number + 1}`, tabIndex: place === store.current ? 0 : -1 },
    shown,
    element("p", { className: item.error || !item.text ? "text quiet" : "text" }, element("bdi", {}, ...text)),
    element("p", { className: "foot" }, element("bdi", { className: "name", title: item.name }, nameOf(item)), ...state),
  );
  return laid(element("li", { className: "card", data: { place, number } }, link, deciding(item, place)), place);
}

// A placeholder for a card until the server has answered.
function waiting(place) {
  const number = store.shown[place];
  const link = element("a", { href: `#${number + 1}`, tabIndex: place === store.current ? 0 : -1 }, element("div", { className: "thumb" }));
  return laid(element("li", { className: "card waiting", data: { place, number } }, link), place);
}

function laid(made, place) {
  made.setAttribute("aria-setsize", store.shown.length);
  made.setAttribute("aria-posinset", place + 1);
  if (place === store.current) made.classList.add("current");
  made.style.setProperty("--column", String(place % columns));
  return made;
}

function deciding(item, place) {
  const buttons = [["Accept", "accept", "accepted"], ["Reject", "reject", "rejected"]].map(([title, action, decision]) => {
    const made = button(title, action);
    made.tabIndex = place === store.current ? 0 : -1;
    made.setAttribute("aria-label", `${title} ${nameOf(item)}`);
    made.setAttribute("aria-pressed", String(item.decision === decision));
    return made;
  });
  return element("p", { className: "deciding" }, ...buttons);
}

function support(item) {
  return element("span", { className: item.low ? "support under" : "support" }, `support ${item.support.toFixed(2)}`);
}

function nameOf(item) {
  const name = item.name.split("/").at(-1) || item.name;
  return store.methods > 1 && item.method ? `${name} · ${item.method}` : name;
}

export function absent(item) {
  return element("span", { className: "absent" }, item.missing ? "Missing" : "Cannot be opened", element("bdi", {}, item.name));
}

// Pictures, and differences, of the cards at which scrolling came to rest.
async function settle() {
  if (!list.offsetParent || !store.shown.length) return;
  if (long.rest()) fill();
  inSight();
  for (const card of cards.values()) {
    const box = card.querySelector(".thumb");
    if (box.firstChild || card.classList.contains("waiting")) continue;
    const image = element("img", { alt: "", decoding: "async" });
    image.addEventListener("error", () => {
      const item = store.items.get(Number(card.dataset.number));
      if (!item) return;
      item.broken = true;
      image.replaceWith(absent(item));
    });
    image.src = `thumb/${card.dataset.number}?v=${store.stamp}`;
    box.append(image);
  }
  if (store.other === null) return;
  const bare = [...cards.values()].filter((card) => !card.dataset.compared && store.items.get(Number(card.dataset.number))?.differs);
  const found = await differences(bare.map((card) => Number(card.dataset.number))).catch(() => new Map());
  for (const card of bare) {
    if (!found.has(Number(card.dataset.number))) continue;
    card.dataset.compared = "yes";
    card.querySelector(".text bdi").replaceChildren(...compared(found.get(Number(card.dataset.number))));
  }
}

// The height of the fixed part above the cards.
function covered() {
  const bar = document.querySelector(".bar");
  return getComputedStyle(bar).position === "sticky" ? bar.offsetHeight : 0;
}

// Makes a card that is in sight the current one, if it is not, and returns its place.
export function inSight() {
  const top = long.origin();
  const own = top + Math.floor(store.current / columns) * height;
  const [above, below] = [covered(), innerHeight];
  if (own + height > above + 1 && own < below - 1 && (own >= above - 1 || own + height <= below + 1)) return store.current;
  const whole = Math.ceil((above - top) / height);
  const row = top + (whole + 1) * height <= below ? whole : Math.floor((above - top) / height);
  mark(Math.max(0, Math.min(store.shown.length - 1, row * columns)));
  return store.current;
}

function mark(place) {
  for (const [which, current] of [[store.current, false], [place, true]]) {
    const card = cards.get(which);
    card?.classList.toggle("current", current);
    for (const part of card?.querySelectorAll("a, button") ?? []) part.tabIndex = current ? 0 : -1;
  }
  store.current = place;
}

// Makes a place the current one, and brings it into view.
export function go(place, focus = true) {
  place = Math.max(0, Math.min(store.shown.length - 1, place));
  mark(place);
  const bar = covered();
  const top = long.origin() + Math.floor(place / columns) * height;
  if (top < bar) long.moveBy(top - bar - 8);
  else if (top + height > innerHeight) long.moveBy(top + height - innerHeight + 8);
  fill();
  mark(place);
  if (focus) cards.get(place)?.firstChild.focus({ preventScroll: true });
}

export function redraw(number) {
  for (const [place, card] of cards) if (Number(card.dataset.number) === number) remake(place);
  settle();
}

function remake(place) {
  const old = cards.get(place);
  const made = card(place);
  const [focused, link] = [old.contains(document.activeElement) && document.activeElement.dataset.do, old.firstChild === document.activeElement];
  made.style.top = old.style.top;
  const image = old.querySelector("img");
  if (image) made.querySelector(".thumb:empty")?.append(image);
  cards.set(place, made);
  old.replaceWith(made);
  const part = link ? "a" : focused && `[data-do=${focused}]`;
  if (part) made.querySelector(part)?.focus({ preventScroll: true });
}

export const across = () => columns;

function scrolled() {
  if (!list.offsetParent) return;
  long.scrolled();
  fill();
}

addEventListener("scroll", scrolled, { passive: true });
new ResizeObserver(() => {
  if (list.clientWidth) draw();
}).observe(list.parentElement);
