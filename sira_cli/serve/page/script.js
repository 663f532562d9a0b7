// The page at / of `sira serve`: a picture and a prompt in, two texts side by side out.
// It speaks to the server as any client does. Whatever it is told or given is shown by textContent only.

import { Column, EMPTY } from "./column.js";
import { differences } from "./differences.js";
import { ChosenPicture } from "./picture.js";
import { Refusal, send } from "./server.js";

const QUESTION = "Is there a dog in the image?";
const find = (selector) => document.querySelector(selector);
const typed = { caption: "", ask: "" }; // a prompt for each task
const picture = new ChosenPicture(forget, (message) => complain("#missing", message));
let settings, columns, running, ended, asked; // ended: once that is over; asked: what a report would be of

async function start() {
  try {
    settings = await (await send("settings")).json();
  } catch (error) {
    if (error.status !== 401) return complain("#trouble", error.inWords ?? String(error));
    if (sessionStorage.getItem("key")) complain("#trouble", "This is not the key of this server.");
    find("#unlock").hidden = false;
    return find("#key").focus();
  }
  for (const part of ["#trouble", "#unlock"]) find(part).hidden = true;
  find("#about").textContent = `${settings.model}, ${settings.layers} layers`;
  document.title = `sira: ${settings.model}`;
  const second = settings.method === "greedy" ? "sira" : "greedy";
  columns = [new Column("First text", settings.method, settings), new Column("Second text", second, settings)];
  find("#columns").append(...columns.map(({ root }) => root));
  typed.caption = settings.prompt;
  for (const place of document.querySelectorAll(".threshold-of-support")) place.textContent = settings.min_support;
  for (const place of document.querySelectorAll(".threshold-of-doubt")) place.textContent = settings.doubt.doubted;
  showTask();
  picture.offer(settings.examples);
  find("#work").hidden = false;
}

// --- the request

function task() {
  return find("[name=task]:checked").value;
}

function showTask() {
  const box = find("#prompt");
  if (box.dataset.task) typed[box.dataset.task] = box.value;
  const isQuestion = task() === "ask";
  box.dataset.task = task();
  box.value = typed[task()];
  box.placeholder = isQuestion ? QUESTION : settings.prompt;
  find("label[for=prompt]").textContent = isQuestion ? "Question" : "Prompt";
}

// Texts about another picture are removed.
async function forget() {
  stop();
  await ended;
  find("#missing").hidden = true;
  asked = null;
  show();
  for (const column of columns) column.clear(EMPTY);
}

// What has to be corrected before a request: a message, and its control.
function missing() {
  if (!picture.file) return ["Choose a picture first.", find("#file")];
  if (task() === "ask" && !find("#prompt").value.trim()) return ["Write a question first.", find("#prompt")];
  const wrong = columns.map((column) => column.wrong()).find(Boolean);
  return wrong && [`${wrong.previousElementSibling.textContent}: ${wrong.validationMessage}`, wrong];
}

// --- running

async function run() {
  await picture.settled;
  stop();
  const [problem, control] = missing() ?? [];
  find("#missing").hidden = true;
  if (problem) {
    complain("#missing", problem);
    for (const { root } of columns) root.classList.add("old"); // its text is not that of the settings above it
    const folded = control.closest("details");
    if (folded) folded.open = true;
    return control.focus();
  }
  ended = decode(begin());
}

async function decode(controller) {
  const verify = find("#verify").value, guided = verify === "guide" && task() === "caption";
  const common = { task: task(), ...(verify ? { verify: guided ? verify : "flag" } : {}) };
  const options = columns.map((column) => ({
    ...column.options(),
    ...common,
    words: find("#words").checked && !guided && column.method.scores_words,
  }));
  const traceable = columns.map((column) => column.method.scores_words);
  try {
    const messages = [{ role: "user", content: [await picture.part(), { type: "text", text: find("#prompt").value.trim() }] }];
    const bodies = options.map((sira) => JSON.stringify({ messages, sira, stream: true, stream_options: { include_usage: true } }));
    const { bytes } = settings.limits;
    if (bodies.some((body) => body.length > bytes)) {
      throw new Refusal(`The file is too large: this server takes requests of up to ${(bytes / 2 ** 20).toFixed(1)} MB.`, 413);
    }
    const whole = await inOrder(bodies, controller.signal);
    if (running !== controller) return;
    const traces = guided ? [] : options.filter((_, at) => whole[at] && traceable[at]); // a guided text cannot be traced
    asked = traces.length ? JSON.stringify({ messages, traces, title: `${traces.map(({ method }) => method).join(" and ")}: ${picture.file.name}` }) : null;
    if (whole.every(Boolean)) {
      const only = differences(...columns.map(({ said }) => said.text));
      columns.forEach((column, at) => column.showDifferences(only[at]));
    }
  } catch (error) {
    for (const column of columns) {
      column.clear();
      column.fail(error);
    }
  }
  end(controller);
}

// Both at once, but the first text is the first to begin: whichever the server takes first, the other waits for.
async function inOrder(bodies, signal) {
  for (const column of columns) column.expect();
  let first;
  await new Promise((begun) => {
    first = columns[0].run(bodies[0], signal, begun);
  });
  return Promise.all([first, columns[1].run(bodies[1], signal)]);
}

function begin() {
  asked = null;
  running = new AbortController();
  for (const { root } of columns) root.classList.remove("old");
  show();
  return running;
}

function end(controller) {
  if (running !== controller) return;
  running = undefined;
  show();
}

function stop() {
  running?.abort();
  if (running) end(running);
}

function show(report) {
  find("#stop").setAttribute("aria-disabled", String(!running));
  find("#report").setAttribute("aria-disabled", String(!asked));
  find("#report").hidden = report !== undefined;
  find("#open").hidden = report === undefined;
  find("#report-status").textContent = "";
  URL.revokeObjectURL(find("#open").href);
  if (report !== undefined) find("#open").href = report;
}

function makeReport() {
  if (!asked || running) return;
  const body = asked;
  const controller = begin();
  asked = body;
  ended = fetchReport(body, controller);
}

async function fetchReport(body, controller) {
  find("#report-status").textContent = "Decoding once more, step by step…";
  try {
    const page = await (await send("report", body, controller.signal)).blob();
    end(controller);
    show(URL.createObjectURL(page));
    find("#open").focus();
  } catch (error) {
    end(controller);
    find("#report-status").textContent = error.name === "AbortError" ? "Stopped." : (error.inWords ?? String(error));
  }
}

function complain(place, message) {
  find(place).textContent = message;
  find(place).hidden = false;
}

// --- events

find("#unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", find("#key").value);
  find("#key").value = "";
  start();
});
find("#ask").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
find("#ask").addEventListener("change", (event) => {
  if (event.target.name === "task") showTask();
  if (event.target.id !== "file") return;
  picture.choose(event.target.files[0]);
  event.target.value = ""; // so that the same file can be chosen again after a correction
});
find("#stop").addEventListener("click", stop);
find("#report").addEventListener("click", makeReport);
document.addEventListener("keydown", (event) => {
  if (!settings || find("#large").open) return;
  if (event.key === "Escape") stop();
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  run();
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find(({ type }) => type.startsWith("image/"));
  if (!file || !settings) return;
  event.preventDefault();
  picture.choose(file);
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    find(".drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && settings) picture.choose(event.dataTransfer.files[0]);
  });
}
start();
