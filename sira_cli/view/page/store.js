// The server's captions as far as this window has fetched them, and which are shown, in which order.

const PIECE = 200; // items that are asked for at once
const KEPT = 10_000; // items in memory

export const store = {
  title: "", other: null, stamp: "", edits: "", records: 0, changes: 0, total: 0, decided: 0, broken: 0, missing: 0, methods: 0, done: 1, trouble: "",
  items: new Map(), // what the gallery shows of an item, by number
  shown: new Int32Array(), // numbers of items
  marks: new Uint8Array(), // whether they are decided, as far as it is known
  current: 0, // a place in `shown`
  steps: [], // what this window did, the last one last: the number of an item, and whether it was changed
  undone: [], // what it took back
  last: "", // what was decided about the picture before
};

export const FILTERS = {
  all: ["All"],
  undecided: ["Not yet decided"],
  low: ["Low support"],
  differs: ["Different texts", () => store.other !== null],
  edited: ["Edited"],
  accepted: ["Accepted"],
  rejected: ["Rejected"],
  errors: ["Errors"],
  warnings: ["Warnings"],
  empty: ["No text"],
};
export const SORTS = { file: ["File"], support: ["Lowest support"], name: ["Name"], length: ["Longest text"] };

export const at = (place) => store.items.get(store.shown[place]);
export const isDecided = (place) => store.marks[place] > 0;

// Fetches the counts; returns whether captions came or went, and whether something was edited.
export async function now() {
  const { records, changes } = store;
  Object.assign(store, await ask("api/now"));
  return { records: store.records !== records, changes: store.changes !== changes };
}

let asked = 0;
// Fetches the list of items; returns whether no newer request was made meanwhile.
export async function choose(query, keep) {
  asked += 1;
  const mine = asked;
  const answer = await ask("api/shown", query, (found) => found.arrayBuffer());
  if (mine !== asked) return false;
  const before = store.shown[store.current];
  const packed = new Int32Array(answer); // see Index.shown
  store.shown = packed.map((one) => one >> 2);
  store.marks = Uint8Array.from(packed, (one) => one & 3);
  const place = keep ? store.shown.indexOf(before) : 0;
  store.current = place >= 0 ? place : Math.max(0, Math.min(store.current, store.shown.length - 1));
  return true;
}

// Gets items that are not known yet; returns whether there were any.
export async function need(numbers) {
  const wanted = numbers.filter((number) => number !== undefined && !store.items.has(number));
  for (const old of store.items.keys()) {
    if (store.items.size < KEPT) break;
    store.items.delete(old);
  }
  for (let first = 0; first < wanted.length; first += PIECE) {
    const piece = wanted.slice(first, first + PIECE);
    const found = await ask("api/items", { numbers: piece });
    found.forEach((brief, index) => store.items.set(piece[index], brief ?? GONE));
  }
  return wanted.length > 0;
}

// Gets items again, and forgets all others; returns the numbers of those that have changed.
export async function again(numbers) {
  const before = store.items;
  store.items = new Map(numbers.filter((number) => before.has(number)).map((number) => [number, before.get(number)]));
  const changed = [];
  for (let first = 0; first < numbers.length; first += PIECE) {
    const piece = numbers.slice(first, first + PIECE);
    const found = await ask("api/items", { numbers: piece });
    found.forEach((brief, index) => {
      const number = piece[index];
      const known = store.items.get(number);
      const now = known?.broken ? { ...brief, broken: true } : (brief ?? GONE);
      if (JSON.stringify(now) === JSON.stringify(known)) return;
      store.items.set(number, now);
      changed.push(number);
    });
  }
  return changed;
}

const GONE = { name: "", text: "", error: "This caption is no longer in its file." };

export async function whole(number) {
  const found = await ask(`api/items/${number}`);
  store.items.delete(number); // so that it is the newest
  store.items.set(number, found.brief);
  return found;
}

// Changes an item; if another window was faster, the error holds the present state.
export async function change(number, what) {
  await need([number]);
  const { version = 0, text } = store.items.get(number);
  const found = await ask(`api/items/${number}`, { seen: version, shown: text, ...what });
  const changed = found.state.version !== version;
  if (what.undo) store.undone.push({ number, changed });
  else store.steps.push({ number, changed });
  if (changed && !what.undo && !what.redo) store.undone = [];
  take(number, found);
  return found;
}

// Applies the server's state of an item, also to the counts.
export function take(number, found) {
  const before = store.items.get(number);
  store.decided += Boolean(found.brief.decision) - Boolean(before?.decision);
  store.items.set(number, found.brief);
  const place = store.shown.indexOf(number);
  if (place >= 0) store.marks[place] = Number(Boolean(found.brief.decision));
}

const known = new Map(); // differences, by item and version
export async function differences(numbers) {
  const key = (number) => `${store.records}.${number}.${store.items.get(number)?.version ?? 0}`;
  const wanted = numbers.filter((number) => !known.has(key(number)));
  if (wanted.length) {
    const keys = wanted.map(key);
    const found = await ask("api/differences", { numbers: wanted });
    if (known.size > KEPT) known.clear();
    found.forEach((stretches, index) => known.set(keys[index], stretches));
  }
  return new Map(numbers.map((number) => [number, known.get(key(number)) ?? []]));
}

async function ask(address, body, read = (found) => found.json()) {
  const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(address, sent);
  } catch {
    throw new Error("The server does not answer. Start sira view again, and open the address that it prints.");
  }
  if (answer.ok) return read(answer);
  const found = await answer.json().catch(() => ({}));
  const error = new Error(found.error ?? `The server answered ${answer.status}.`);
  throw Object.assign(error, { now: found.now, status: answer.status });
}
