// What the server knows, and which of it is shown, in which order.

export const store = {
  title: "", other: null, stamp: "", edits: "", broken: 0, missing: 0, methods: 0, items: [],
  shown: [], // numbers of items
  current: 0, // a place in `shown`
  done: [], // what this window did, the last one last: the number of an item, and whether it was changed
  undone: [], // what it took back
  last: "", // what was decided about the picture before
};

export const FILTERS = {
  all: ["All", () => true],
  undecided: ["Not yet decided", (item) => !item.decision],
  low: ["Low support", (item) => Boolean(item.low)],
  differs: ["Different texts", (item) => Boolean(item.differs), () => store.other !== null],
  edited: ["Edited", (item) => Boolean(item.edited)],
  accepted: ["Accepted", (item) => item.decision === "accepted"],
  rejected: ["Rejected", (item) => item.decision === "rejected"],
  errors: ["Errors", (item) => Boolean(item.error || item.missing || item.broken)],
  warnings: ["Warnings", (item) => Boolean(item.warnings)],
  empty: ["No text", (item) => !item.text],
};

const unknown = (value, last) => (value === undefined ? last : value);
export const SORTS = {
  file: ["File", (one, two) => one - two],
  support: [
    "Lowest support",
    (one, two) => unknown(store.items[one].support, 2) - unknown(store.items[two].support, 2) || one - two,
  ],
  name: ["Name", (one, two) => store.items[one].name.localeCompare(store.items[two].name) || one - two],
  length: ["Longest text", (one, two) => store.items[two].text.length - store.items[one].text.length || one - two],
};

export async function load() {
  Object.assign(store, await ask("api/items"));
}

export function choose({ words, filter, sort, keep }) {
  const before = store.shown[store.current];
  const wanted = words.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  const [, keeps] = FILTERS[filter];
  store.shown = [];
  store.items.forEach((item, number) => {
    if (!keeps(item)) return;
    const said = wanted.length ? `${item.text} ${item.name}`.toLocaleLowerCase() : "";
    if (wanted.every((word) => said.includes(word))) store.shown.push(number);
  });
  store.shown.sort(SORTS[sort][1]);
  const place = keep ? store.shown.indexOf(before) : 0;
  store.current = place >= 0 ? place : Math.max(0, Math.min(store.current, store.shown.length - 1));
}

export const whole = (number) => ask(`api/items/${number}`).then((found) => take(number, found));

// Changes an item; where another window was faster, the error brings what it says now.
export async function change(number, what) {
  const seen = store.items[number].version ?? 0;
  const found = await ask(`api/items/${number}`, { seen, ...what });
  const changed = found.state.version !== seen;
  if (what.undo) store.undone.push({ number, changed });
  else store.done.push({ number, changed });
  if (changed && !what.undo && !what.redo) store.undone = [];
  return take(number, found);
}

const known = new Map(); // differences, by item and version
export async function differences(numbers) {
  const key = (number) => `${number}.${store.items[number].version ?? 0}`;
  const wanted = numbers.filter((number) => !known.has(key(number)));
  if (wanted.length) {
    const keys = wanted.map(key);
    const found = await ask("api/differences", { numbers: wanted });
    found.forEach((stretches, at) => known.set(keys[at], stretches));
  }
  return new Map(numbers.map((number) => [number, known.get(key(number)) ?? []]));
}

export function take(number, found) {
  const { broken } = store.items[number];
  store.items[number] = broken ? { ...found.brief, broken } : found.brief;
  return found;
}

async function ask(address, body) {
  const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(address, sent);
  } catch {
    throw new Error("The server does not answer. Start sira view again, and open the address that it prints.");
  }
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return found;
  const error = new Error(found.error ?? `The server answered ${answer.status}.`);
  throw Object.assign(error, { now: found.now, status: answer.status });
}
