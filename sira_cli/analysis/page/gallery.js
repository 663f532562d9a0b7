"use strict";
// Cards of records, made as one scrolls. Whatever a record says gets in as text only: by `element`, which stands at the end.

document.documentElement.classList.add("script");
const AT_ONCE = 60; // cards
const field = (id) => document.getElementById(id);
const { place, names, entries } = JSON.parse(field("records").textContent);
const pictures = field("pictures").textContent.split("\n");
const PLACE = `sira.corrections ${place}`;
const ORDERS = {
  rank: (one, other) => entries[one].rank - entries[other].rank || one - other,
  file: (one, other) => one - other,
  name: (one, other) => entries[one].name.localeCompare(entries[other].name, undefined, { numeric: true }) || one - other,
};
const FILTERS = {
  all: () => true,
  doubtful: (entry) => entry.unsure.length + entry.warnings.length > 0 && !isCorrected(entry),
  different: (entry) => entry.other !== null && (entry.other.text !== textOf(entry) || entry.other.error !== entry.error),
  corrected: isCorrected,
  failed: (entry) => entry.error !== "",
};
const state = { shown: [], made: 0, current: -1, corrections: new Map(), earlier: new Map(), saved: "", ...kept() };

// --- corrections: by key and name of the record, so that a text that was made anew has none

function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE));
    if (found === null) return {};
    return { corrections: new Map(found.corrections), earlier: new Map(found.earlier), saved: found.saved };
  } catch {
    return {}; // no storage: they last as long as the page
  }
}

function keep() {
  try {
    const { corrections, earlier, saved } = state;
    localStorage.setItem(PLACE, JSON.stringify({ corrections: [...corrections], earlier: [...earlier], saved }));
  } catch {
    // as above; leaving asks
  }
}

function identity(entry) {
  return `${entry.key} ${entry.name}`;
}

function isCorrected(entry) {
  return state.corrections.has(identity(entry));
}

function textOf(entry) {
  return state.corrections.get(identity(entry)) ?? entry.text;
}

function correct(entry, text) {
  if (text === entry.text) state.corrections.delete(identity(entry));
  else state.corrections.set(identity(entry), text);
  keep();
  count();
}

function lines() {
  const made = (entry) => {
    const line = { schema: "sira.correction/1", file_name: entry.file_name, key: entry.key, text: textOf(entry) };
    const earlier = earlierOf(entry).filter((text) => text !== line.text);
    return earlier.length > 0 ? { ...line, earlier } : line;
  };
  const wanted = entries.filter((entry) => isCorrected(entry) || earlierOf(entry).length > 0);
  return wanted.map((entry) => `${JSON.stringify(made(entry))}\n`).join("");
}

// Corrections in files that were saved before: text files may have them, which a later correction replaces.
function earlierOf(entry) {
  return state.earlier.get(identity(entry)) ?? [];
}

function save() {
  const text = lines();
  if (!text) return;
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "application/jsonl" })), download: "corrections.jsonl" });
  state.saved = text;
  for (const entry of entries.filter(isCorrected)) {
    state.earlier.set(identity(entry), [...new Set([...earlierOf(entry), textOf(entry)])]);
  }
  keep();
  count();
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// --- which cards

function choose() {
  const words = field("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = FILTERS[field("filter").value];
  const shown = entries.map((entry, number) => number).filter((number) => {
    const { name, unsure, warnings } = entries[number];
    const said = [textOf(entries[number]), name, ...unsure, ...warnings].join(" ").toLowerCase();
    return fits(entries[number]) && words.every((word) => said.includes(word));
  });
  Object.assign(state, { shown: shown.sort(ORDERS[field("sort").value]), made: 0 });
  field("cards").replaceChildren();
  more();
  count();
}

function more() {
  const next = state.shown.slice(state.made, state.made + AT_ONCE);
  field("cards").append(...next.map(card));
  state.made += next.length;
}

function count() {
  const corrected = entries.filter(isCorrected).length;
  const text = lines();
  const unsaved = text !== "" && text !== state.saved;
  field("count").textContent =
    `${state.shown.length} of ${entries.length} shown` + (text ? `, ${corrected} corrected${unsaved ? ", not saved" : ""}.` : ".");
  field("save").disabled = !text;
}

// --- a card

function card(number) {
  const entry = entries[number];
  const made = element("li", { className: "card", tabIndex: -1, data: { number } }, picture(number), element("div", { className: "said" }));
  write(made, entry);
  return made;
}

function picture(number) {
  const uris = pictures[number] ? pictures[number].split(" ") : [];
  const images = uris.map((src) => element("img", { src, alt: "", decoding: "async" }));
  if (images.length) return element("button", { type: "button", className: "shown", aria: { label: `Enlarge ${entries[number].name}` } }, ...images);
  return element("div", { className: "missing" }, "No picture");
}

function write(card, entry) {
  const { other, prompt, note, name, warnings } = entry;
  const corrected = isCorrected(entry);
  const now = corrected ? { text: textOf(entry), unsure: [] } : entry;
  const hints = [other === null ? `Not in ${names[1]}.` : "", note].filter(Boolean);
  card.querySelector(".said").replaceChildren(
    ...(prompt ? [element("p", { className: "hint" }, prompt)] : []),
    ...said(now, other === undefined ? "" : names[0]),
    ...(other ? said(corrected ? { ...other, only: [] } : other, names[1]) : []),
    ...warnings.map((warning) => element("p", { className: "unsure" }, `Warning: ${warning}`)),
    ...hints.map((hint) => element("p", { className: "hint" }, hint)),
    element("p", { className: "foot" },
      element("span", { className: "name" }, name),
      corrected ? element("b", {}, "corrected") : null,
      element("button", { type: "button", className: "edit", aria: { label: `Edit the text of ${name}` } }, "Edit"),
    ),
  );
}

// What one run says: its name if there are two, its text or why there is none, and what is unsure.
function said({ error, unsure, ...rest }, name) {
  return [
    name ? element("h2", {}, name) : "",
    error ? element("p", { className: "notice" }, error) : text(rest),
    unsure.length ? element("p", { className: "unsure" }, `Unsure: ${unsure.join(", ")}`) : "",
  ].filter(Boolean);
}

// A text in pieces: doubtful words with their degree, and words that the other run lacks.
function text({ text, marks = [], only = [] }) {
  const pieces = cut(text, [...marks.map(([start, end]) => [start, end]), ...only], (piece, start, end) => {
    const over = marks.filter(([first, last]) => first <= start && end <= last);
    const classes = over.length ? [`tok g${Math.max(...over.map(([, , degree]) => degree))}`] : [];
    if (only.some(([first, last]) => first <= start && end <= last)) classes.push("only");
    return classes.length ? element("span", { className: classes.join(" "), title: over.map(([, , , about]) => about).join(", ") }, piece) : piece;
  });
  return element("p", { className: "text", dir: "auto" }, ...pieces);
}

// A text in pieces, cut where spans begin and end; `make` turns a piece, with its start and end, into a node or a string.
// Places are counted in characters, as Python does; JavaScript's strings may need two units for one.
function cut(text, spans, make) {
  const letters = [...text];
  const places = [...new Set([0, letters.length, ...spans.flat()])].sort((one, other) => one - other);
  return places.slice(1).map((end, at) => make(letters.slice(places[at], end).join(""), places[at], end));
}

function edit(card) {
  const entry = entries[card.dataset.number];
  const area = element("textarea", { value: textOf(entry), rows: 6, dir: "auto", aria: { label: `Text of ${entry.name}` } });
  const button = (name, act) => element("button", { type: "button", onclick: act }, name);
  const close = () => (write(card, entry), card.focus());
  const done = (text) => (correct(entry, text.trim()), close());
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done(area.value);
    else if (event.key === "Escape") close();
  });
  const buttons = [button("Keep", () => done(area.value)), button("Leave", close)];
  if (isCorrected(entry)) buttons.push(button("First text", () => done(entry.text)));
  if (entry.other) buttons.push(button(`Text of ${names[1]}`, () => done(entry.other.text)));
  const doubts = card.querySelectorAll(".said > :is(h2, .text, .unsure)"); // what is to correct stays in view
  card.querySelector(".said").replaceChildren(...doubts, area, element("p", { className: "foot" }, ...buttons));
  area.focus();
}

// --- what one does

function go(by) {
  const at = state.shown.indexOf(state.current);
  const next = Math.max(0, Math.min(state.shown.length - 1, at + by));
  while (next >= state.made && state.made < state.shown.length) more();
  field("cards").children[next]?.focus();
}

const KEYS = {
  j: () => go(1),
  k: () => go(-1),
  e: () => document.querySelector(`[data-number="${state.current}"] .edit`)?.click(),
  s: save,
  "/": () => field("words").focus(),
};
document.addEventListener("keydown", (event) => {
  if (!(event.key in KEYS) || event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  KEYS[event.key]();
});
field("cards").addEventListener("focusin", (event) => (state.current = Number(event.target.closest(".card").dataset.number)));
field("cards").addEventListener("click", (event) => {
  const card = event.target.closest(".card");
  if (event.target.closest(".edit")) edit(card);
  else if (event.target.closest(".shown")) card.classList.toggle("large");
});
field("save").addEventListener("click", save);
for (const id of ["words", "filter", "sort"]) field(id).addEventListener("input", choose);
addEventListener("beforeunload", (event) => {
  const typed = [...document.querySelectorAll("textarea")].some((area) => area.value !== textOf(entries[area.closest(".card").dataset.number]));
  if (typed || (lines() && lines() !== state.saved)) event.preventDefault();
});
new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && more(), { rootMargin: "1000px" }).observe(field("end"));
choose();
