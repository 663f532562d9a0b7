// Texts that were typed and not saved; the browser keeps them, also after the window is closed.

import { store } from "./store.js";

const key = (number) => `sira view ${store.edits} ${store.items.get(number).id ?? store.items.get(number).name}`;

// `{ text, version }` of what was typed for an item, and the version it was about; null without any.
export function draft(number) {
  try {
    return JSON.parse(localStorage.getItem(key(number)));
  } catch {
    return null;
  }
}

export function keepDraft(number, text, version) {
  try {
    localStorage.setItem(key(number), JSON.stringify({ text, version }));
  } catch {
    // this browser keeps nothing, or its place is full: the field still holds the text
  }
}

export function dropDraft(number) {
  try {
    localStorage.removeItem(key(number));
  } catch {
    // it keeps nothing
  }
}
