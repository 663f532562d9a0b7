// The page at / of `sira serve`: a picture and a question in, the texts of two methods out, with words to doubt marked.
// It speaks to the server as any client does. Whatever it is told or given is shown as text only.

import { element } from "./element.js";

const EDGES = /^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu;
const find = (selector, within = document) => within.querySelector(selector);
let settings, columns, file, running;

// --- the server

async function send(path, body, signal) {
  const key = sessionStorage.getItem("key");
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body, signal }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The server does not answer: is sira serve still running?");
  });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  throw Object.assign(new Error(told?.error?.message ?? `The server answered ${answer.status}.`), { status: answer.status });
}

// The events of a streamed answer, until its end is told.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The connection was lost.");
    const lines = (waiting + value).split("\n\n");
    waiting = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice("data: ".length));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

async function start() {
  try {
    settings = await (await send("settings")).json();
  } catch (error) {
    if (error.status !== 401) return complain(error.message);
    if (sessionStorage.getItem("key")) complain("This is not the key of this server.");
    find("#unlock").hidden = false;
    return find("#key").focus();
  }
  find("#unlock").hidden = find("#trouble").hidden = true;
  find("#about").textContent = settings.model;
  find("#doubted").textContent = settings.doubted;
  columns = settings.methods.map((method) => {
    const root = find("#column").content.firstElementChild.cloneNode(true);
    find("h2", root).textContent = method.name;
    find("#columns").append(root);
    return { method, root, text: find(".text", root), status: find("[role=status]", root) };
  });
  find("#ask").hidden = find("#legend").hidden = false;
}

// --- running

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.replace(/^data:.*?(;base64)?,/, "data:;base64,"));
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

async function run() {
  stop();
  find("#trouble").hidden = true;
  if (!file) {
    complain("Choose a picture first.");
    return find("#file").focus();
  }
  const controller = (running = new AbortController());
  find("#stop").setAttribute("aria-disabled", "false");
  const text = find("#question").value.trim();
  try {
    const content = [{ type: "image_url", image_url: await dataUrl(file) }, ...(text ? [{ type: "text", text }] : [])];
    const messages = [{ role: "user", content }];
    await Promise.all(columns.map((column) => write(column, messages, text ? "ask" : "caption", controller.signal)));
  } catch (error) {
    complain(error.message);
  }
  if (running === controller) stop();
}

// A text as it grows; at its end, with its marks.
async function write({ method, text, status }, messages, task, signal) {
  text.replaceChildren();
  status.textContent = "Waiting for its turn…";
  const sira = { method: method.name, task, words: method.scores_words };
  let whole = "", end;
  try {
    const body = JSON.stringify({ messages, sira, stream: true });
    for await (const event of events(await send("v1/chat/completions", body, signal))) {
      const { content, reasoning_content: thought } = event.choices[0]?.delta ?? {};
      if (thought) status.textContent = "Thinking…";
      if (content) {
        whole += content;
        text.append(content);
        status.textContent = "Writing…";
      }
      end = event.sira ?? end;
    }
  } catch (error) {
    status.textContent = error.name === "AbortError" ? "Stopped." : error.message;
    return;
  }
  const doubted = mark(text, whole, end.words ?? []);
  const said = method.scores_words ? `Words to doubt: ${doubted.join(", ") || "none"}. ` : "";
  status.textContent = [`${said}${end.decoding_seconds.toFixed(1)} s`, ...(end.warnings ?? [])].join("\n");
}

// Mark the words to doubt in a text, and return them.
function mark(place, text, words) {
  const letters = [...text];
  const doubted = [];
  let last = 0;
  place.replaceChildren();
  for (const { start, end, grounding } of words) {
    const word = letters.slice(start, end).join("").replace(EDGES, "");
    if (grounding >= settings.doubted || !word || settings.function_words.includes(word.toLowerCase().replaceAll("’", "'"))) continue;
    const degree = settings.steps.filter((step) => grounding < step).length;
    const [before, after] = letters.slice(start, end).join("").split(word);
    place.append(letters.slice(last, start).join("") + before);
    place.append(element("span", { className: `tok g${degree}`, title: `grounding ${grounding.toFixed(2)}` }, word), after);
    doubted.push(word);
    last = end;
  }
  place.append(letters.slice(last).join(""));
  return doubted;
}

function stop() {
  running?.abort();
  running = undefined;
  find("#stop").setAttribute("aria-disabled", "true");
}

function complain(message) {
  find("#trouble").textContent = message;
  find("#trouble").hidden = false;
}

function choose(chosen) {
  if (!chosen || !settings) return;
  stop();
  file = chosen;
  find("#name").textContent = file.name;
  const picture = find("#picture");
  URL.revokeObjectURL(picture.src);
  picture.src = URL.createObjectURL(file);
  picture.hidden = false;
  find("#invitation").hidden = true;
  for (const { text, status } of columns) text.textContent = status.textContent = "";
}

// --- events

find("#picture").addEventListener("error", () => {
  find("#picture").hidden = true; // a kind that this browser does not show; the server may know it
  find("#invitation").hidden = false;
});
find("#unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", find("#key").value);
  start();
});
find("#ask").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
find("#file").addEventListener("change", ({ target }) => {
  choose(target.files[0]);
  target.value = ""; // so that the same file can be chosen again
});
find("#stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !settings) return;
  event.preventDefault(); // the button that has the focus is not pressed, too
  run();
});
document.addEventListener("paste", (event) => choose(event.clipboardData.files[0]));
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    find(".drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") choose(event.dataTransfer.files[0]);
  });
}
start();
