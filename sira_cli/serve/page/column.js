// A column of the page: a method with its settings, and the text that it writes.

import { element } from "./element.js";
import { bare, degree, isDoubted, mark, marked } from "./marks.js";
import { Refusal, events, send } from "./server.js";
import { reasoning, unsure } from "./texts.js";

const SIGNS = { k: "K", alpha: "α", beta: "β" };
const AT_HAND = ["k", "alpha"]; // other settings are folded away
const ENDS = { stop: "the model ended the text", length: "the longest text was reached" };

export const EMPTY = "The text will appear here.";

const find = (selector, within) => within.querySelector(selector);

export class Column {
  constructor(title, method, settings) {
    this.server = settings;
    this.root = find("#column", document).content.firstElementChild.cloneNode(true);
    this.root.setAttribute("aria-label", title);
    find("h2", this.root).textContent = title;
    this.select = find(".method", this.root);
    this.select.append(...settings.methods.map(({ name }) => element("option", { value: name }, name)));
    this.select.value = method;
    this.select.addEventListener("change", () => this.showSettings());
    this.text = find(".text", this.root);
    this.failure = find(".failure", this.root);
    this.status = find(".status", this.root);
    this.showSettings();
    this.clear(EMPTY);
  }

  get method() {
    return this.server.methods.find(({ name }) => name === this.select.value);
  }

  showSettings() {
    const [front, folded] = this.root.querySelectorAll(".fields");
    const { name, settings } = this.method;
    const inFront = (one) => AT_HAND.includes(one.name) && name !== "greedy"; // its K decides scores only
    this.fields = settings.map((one) => ({ one, control: controlOf(one) }));
    const labelled = (wanted) =>
      this.fields.filter(({ one }) => inFront(one) === wanted).map(({ one, control }) => labelledControl(one, control, this.server));
    front.replaceChildren(...labelled(true));
    folded.replaceChildren(...labelled(false));
    folded.parentElement.hidden = !folded.children.length;
  }

  // What a request has under `sira`. Settings that are as they were are the server's own, and left out.
  options() {
    const changed = this.fields.filter(({ one, control }) => control.value !== written(one.value));
    return { method: this.select.value, ...Object.fromEntries(changed.map(({ one, control }) => [one.name, valueOf(one, control)])) };
  }

  // The control of a setting with a wrong value, if any.
  wrong() {
    return this.fields.find(({ control }) => !control.checkValidity())?.control;
  }

  clear(empty = "") {
    this.failure.hidden = true;
    this.status.textContent = "";
    this.text.replaceChildren();
    find(".thoughts", this.root).replaceChildren();
    this.text.setAttribute("aria-live", "polite");
    this.text.dataset.empty = empty;
    this.said = null; // the text, and what is marked in it
    for (const part of this.root.querySelectorAll(".only, .doubts, .things")) part.hidden = true;
  }

  expect() {
    this.clear();
    this.status.textContent = "Waiting for its turn…";
  }

  fail(error) {
    this.status.textContent = "";
    this.failure.textContent = error instanceof Refusal ? error.inWords : String(error);
    this.failure.hidden = false;
  }

  // Ask for a text and show it as it grows; `onBegin` is called with its first piece. Returns whether it is whole.
  async run(body, signal, onBegin = () => {}) {
    let text = "", thoughts = "", tokens, sira;
    try {
      for await (const event of events(await send("v1/chat/completions", body, signal))) {
        onBegin();
        const { content: piece, reasoning_content: thought } = event.choices[0]?.delta ?? {};
        if (thought) {
          thoughts += thought;
          this.status.textContent = "Thinking…";
        }
        if (piece) {
          text += piece;
          this.text.append(piece);
          this.status.textContent = "Writing…";
        }
        sira = event.sira ?? sira;
        tokens = event.usage?.completion_tokens ?? tokens;
      }
    } catch (error) {
      onBegin();
      if (error.name === "AbortError") this.status.textContent = "Stopped.";
      else this.fail(error);
      return false;
    } finally {
      find(".thoughts", this.root).append(reasoning(thoughts) ?? "");
    }
    this.finish(text, sira);
    const seconds = sira.decoding_seconds.toFixed(1);
    this.status.replaceChildren(
      `${tokens} tokens in ${seconds} s; ${ENDS[sira.finish_reason] ?? sira.finish_reason}.`,
      element("span", { className: "unseen" }, ` ${unsure(this.said.unsupported.map((one) => one.thing))}`),
    );
    return true;
  }

  finish(text, { words, objects, candidates, verify, warnings = [] }) {
    const unsupported = (objects ?? []).filter((one) => one.support < verify.min_support);
    this.said = { text, words: words ?? [], unsupported };
    this.mark();
    if (warnings.length) this.fail(warnings.join("\n"));
    if (words) this.showDoubts(words);
    if (candidates) this.showThings(candidates, verify, "Looked for first;");
    else if (objects) this.showThings(objects, verify, "Objects");
  }

  mark(only = []) {
    const { text, words, unsupported } = this.said;
    this.text.setAttribute("aria-live", "off"); // the same text once more, with marks
    this.text.replaceChildren(...marked(text, words, unsupported, only, this.server.doubt));
  }

  // `only`: start and end of what the other text lacks.
  showDifferences(only) {
    this.mark(only);
    const letters = [...this.said.text];
    const box = find(".only", this.root);
    find("h3", box).textContent = `Only in this text: ${only.length ? "" : "nothing"}`;
    find("ul", box).replaceChildren(...only.map(([start, end]) => element("li", {}, element("mark", {}, letters.slice(start, end).join("")))));
    box.hidden = false;
  }

  showDoubts(words) {
    const box = find(".doubts", this.root);
    const { doubt: rules } = this.server;
    const doubted = words.filter((word) => isDoubted(word, rules));
    doubted.sort((one, other) => one.grounding - other.grounding);
    find("h3", box).textContent = `Words to doubt: ${doubted.length || "none"}`;
    find("ul", box).replaceChildren(
      ...doubted.map((word) => element("li", {}, mark(bare(word.word), degree(word, rules)), ` ${plain(word.grounding, rules.doubted)}`)),
    );
    box.hidden = false;
  }

  showThings(objects, { min_support: threshold }, kinds) {
    const box = find(".things", this.root);
    const sorted = [...objects].sort((one, other) => one.support - other.support);
    const absent = sorted.filter((one) => one.support < threshold).length;
    find("h3", box).textContent = sorted.length
      ? `${kinds} not supported: ${absent || "none"} of ${sorted.length}`
      : "The second look recognised nothing in the text.";
    for (const part of [find("table", box), find(".hint", box)]) part.hidden = !sorted.length;
    find(".hint", box).textContent = `Below ${threshold}, the line in the bars, an object is not supported.`;
    find("tbody", box).replaceChildren(...sorted.map((one) => row(one.thing, one.support, threshold)));
    box.hidden = false;
  }
}

function row(thing, support, threshold) {
  const supported = support >= threshold;
  const [fill, edge] = [element("i"), element("b")];
  fill.style.width = `${100 * support}%`;
  edge.style.left = `${100 * threshold}%`;
  const bar = element("span", { className: "share" }, fill, edge);
  const name = element("th", { scope: "row" }, element("bdi", {}, supported ? thing : `[${thing}]`));
  const verdict = element("span", { className: "unseen" }, supported ? "" : ", not supported");
  return element("tr", { className: supported ? "" : "unsupported" }, name, element("td", {}, plain(support, threshold), bar, verdict));
}

// A number with two digits, or as many as it takes to see on which side of a threshold it is.
function plain(value, threshold) {
  for (let digits = 2; ; digits++) {
    const shown = value.toFixed(digits);
    if (digits === 6 || Number(shown) < threshold === value < threshold) return shown;
  }
}

// --- settings

function written(value) {
  return value === null ? "" : String(value);
}

function valueOf({ kind }, { value }) {
  if (value === "") return null; // off
  return kind === "str" ? value : Number(value);
}

function controlOf({ kind, value, low, high, choices, optional, meaning }) {
  if (kind === "str") {
    const select = element("select", { title: meaning }, ...choices.map((choice) => element("option", { value: choice }, choice)));
    select.value = written(value);
    return select;
  }
  const limits = Object.fromEntries([["min", low], ["max", high]].filter(([, limit]) => limit !== null));
  const step = kind === "int" ? "1" : "any";
  return element("input", { type: "number", title: meaning, step, ...limits, value: written(value), required: !optional, placeholder: optional ? "off" : "" });
}

function labelledControl({ name }, control, { layers }) {
  const label = name === "k" ? `K of ${layers}` : (SIGNS[name] ?? name.replaceAll("_", " "));
  return element("label", { className: "field" }, element("span", {}, label), control);
}
