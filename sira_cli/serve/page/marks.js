// Marks words to doubt, unsupported objects, and parts that another text lacks. Text is inserted as text only.
// What is to be doubted is decided as in the report; `rules` are the settings' `doubt`.

import { element } from "./element.js";
import { cut } from "./texts.js";

const EDGES = /^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu;

export function bare(word) {
  return word.replace(EDGES, "");
}

// Whether it can be true or false of a picture: function words and bare punctuation cannot.
function saysSomething(word, rules) {
  const core = bare(word).toLowerCase().replaceAll("’", "'");
  return core !== "" && !rules.function_words.includes(core);
}

export function isDoubted({ word, grounding }, rules) {
  return saysSomething(word, rules) && grounding < rules.doubted;
}

// The class of a word's degree of doubt. Only words to doubt have a colour.
export function degree(word, rules) {
  const below = isDoubted(word, rules) ? rules.steps.filter((step) => word.grounding < step).length : 0;
  return `g${below}`;
}

// A text in pieces: words without the punctuation around them, mentions of objects, and `only`, what another text lacks,
// as start and end.
export function marked(text, words, unsupported, only, rules) {
  const letters = [...text];
  const part = (start, end) => letters.slice(start, end).join("");
  if (words.some((word) => part(word.start, word.end) !== word.word)) words = []; // the text was changed since
  const cores = words.flatMap((word) => {
    const core = bare(word.word);
    const start = word.start + [...word.word.slice(0, word.word.indexOf(core))].length;
    return core ? [{ ...word, start, end: start + [...core].length }] : [];
  });
  const mentions = unsupported.flatMap((one) => one.spans);
  const starts = []; // of the pieces
  const pieces = cut(text, [...cores.map(({ start, end }) => [start, end]), ...mentions, ...only], (piece, start, end) => {
    starts.push(start);
    const word = cores.find((one) => one.start <= start && end <= one.end);
    const mention = mentions.find(([first, last]) => first <= start && end <= last);
    const telling = word !== undefined && saysSomething(word.word, rules);
    const classes = [];
    if (word) classes.push(telling ? degree(word, rules) : "pale");
    if (mention) classes.push("unsupported");
    if (mention?.[0] === start) classes.push("begins");
    if (mention?.[1] === end) classes.push("ends");
    const title = telling ? `grounding ${word.grounding.toFixed(2)}` : "";
    return classes.length ? mark(piece, classes.join(" "), title) : piece;
  });
  return only.reduceRight((all, [start, end]) => {
    const [first, last] = [start, end].map((place) => (place < letters.length ? starts.indexOf(place) : starts.length));
    return [...all.slice(0, first), element("mark", {}, ...all.slice(first, last)), ...all.slice(last)];
  }, pieces);
}

export function mark(text, classes, title = "") {
  return element("span", { className: `tok ${classes}`, title }, text);
}
