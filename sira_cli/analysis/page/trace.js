"use strict";
// Each trace of the page is a world of its own: a strip of tokens, a chart, a panel of the selected token.
// Whatever a trace says gets in as text only: by textContent, and by `element`, which stands at the end.

document.documentElement.classList.add("script");
const VIEWS = ["Full", "CF", "Contrast"];
const FEW = 12; // candidates at first

function enliven(card) {
  card.querySelectorAll("details").forEach((details) => (details.open = false));
  card.addEventListener("click", sortWords);
  const { tokens, first } = JSON.parse(card.querySelector("script.data").textContent);
  if (!tokens.length) return;

  const strip = card.querySelector(".strip");
  const spans = [...strip.children];
  const svg = card.querySelector(".plot svg");
  const cursors = card.querySelectorAll(".cursor");
  const state = { pinned: first, shown: -1, unit: "logit", all: false };

  strip.setAttribute("role", "listbox");
  strip.setAttribute("aria-orientation", "horizontal");
  spans.forEach((span, step) => {
    span.setAttribute("role", "option");
    span.setAttribute("aria-selected", "false");
    span.tabIndex = -1;
    span.dataset.step = step;
    span.removeAttribute("title"); // the panel says more
    if (!span.textContent.trim()) span.setAttribute("aria-label", tokens[step].text.trim() || "space");
  });

  function show(step) {
    spans[state.shown]?.classList.remove("shown");
    spans[step].classList.add("shown");
    state.shown = step;
    for (const cursor of cursors) cursor.setAttribute("d", `M${step + 0.5} -4V104`);
    fillPanel(card, tokens, state);
  }

  function pin(step, focus) {
    step = Math.max(0, Math.min(tokens.length - 1, step));
    spans[state.pinned].setAttribute("aria-selected", "false");
    spans[state.pinned].tabIndex = -1;
    spans[step].setAttribute("aria-selected", "true");
    spans[step].tabIndex = 0;
    state.pinned = step;
    show(step);
    if (focus) spans[step].focus();
    card.querySelector("[role=status]").textContent = inWords(tokens, step);
  }

  const stepOf = (target) => {
    const holder = target.closest("[data-step]");
    return holder === null ? null : Number(holder.dataset.step);
  };
  const stepAt = (event) => {
    const box = svg.getBoundingClientRect();
    const step = Math.floor(((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width);
    return step >= 0 && step < tokens.length ? step : null;
  };
  // Hovering shows a token, a click or a key keeps it.
  const preview = (step) => {
    if (step !== null && step !== state.shown) show(step);
  };
  const back = () => preview(state.pinned);

  strip.addEventListener("mouseover", (event) => preview(stepOf(event.target)));
  strip.addEventListener("mouseleave", back);
  strip.addEventListener("keydown", (event) => {
    const forward = getComputedStyle(strip).direction === "rtl" ? -1 : 1;
    const to = { ArrowLeft: state.pinned - forward, ArrowRight: state.pinned + forward, Home: 0, End: Infinity };
    if (!(event.key in to) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    pin(to[event.key], true);
  });
  card.addEventListener("click", (event) => {
    const { turn } = event.target.dataset;
    const step = turn ? state.pinned + Number(turn) : stepOf(event.target);
    if (step !== null) pin(step, !turn); // what leads to a token from afar brings it into view
    if (event.target.closest(".all-rows")) {
      state.all = !state.all;
      fillPanel(card, tokens, state);
      card.querySelector(".all-rows").focus();
    }
  });
  card.querySelector(".unit").addEventListener("change", (event) => {
    state.unit = event.target.value;
    fillPanel(card, tokens, state);
  });
  const chart = card.querySelector(".chart");
  chart.addEventListener("mousemove", (event) => preview(stepAt(event)));
  chart.addEventListener("mouseleave", back);
  chart.addEventListener("click", (event) => stepAt(event) !== null && pin(stepAt(event), false));

  spans[state.pinned].tabIndex = 0;
  spans[state.pinned].setAttribute("aria-selected", "true");
  show(state.pinned); // not announced: nobody has asked yet
}

function inWords(tokens, step) {
  const token = tokens[step];
  const ranks = [3, 6, 9].map((at) => token.rows[token.chosen][at]);
  return (
    `Token ${step + 1} of ${tokens.length}: ${token.text.trim()}. Delta ${signed(token.delta)}, KL ${token.kl.toFixed(3)}. ` +
    `Rank ${ranks[0]} full, ${ranks[1]} CF, ${ranks[2]} contrast.` +
    (token.support === undefined ? "" : ` Support ${plain(token.support)}: ${token.supported ? "supported" : "not supported"}.`)
  );
}

function fillPanel(card, tokens, state) {
  const token = tokens[state.shown];
  card.querySelector(".where").textContent = `Token ${state.shown + 1} of ${tokens.length}`;
  card.querySelector(".what").replaceChildren(...named(token.text));
  const grounding = token.grounding === null ? [] : [element("span", {}, "Grounding ", element("b", {}, plain(token.grounding)))];
  const verdict = token.supported ? "" : ", not supported";
  const support = token.support === undefined ? [] : [element("span", {}, "Support ", element("b", {}, plain(token.support)), verdict)];
  card.querySelector(".numbers").replaceChildren(
    ...grounding,
    ...support,
    element("span", {}, "Δ ", element("b", {}, signed(token.delta))),
    element("span", {}, "KL ", element("b", {}, token.kl.toFixed(3))),
  );
  card.querySelector(".candidates").replaceChildren(...candidates(token, state));
  card.querySelector(".tracked").replaceChildren(...tracked(token, state));
}

function candidates(token, state) {
  const table = element("table");
  table.append(
    element("caption", { className: "unseen" }, `Candidates for this token: ${state.unit} and rank in each view`),
    element("thead", {}, element("tr", {}, heading("Token"), ...VIEWS.map((view) => heading(view, view.toLowerCase())))),
  );
  const body = table.appendChild(element("tbody"));
  const range = rangeOf(token.rows, state.unit, 1);
  const shown = token.rows.map((row, at) => at).filter((at) => state.all || at < FEW || at === token.chosen);
  for (const at of shown) {
    const row = token.rows[at];
    const name = element("th", { scope: "row" }, element("bdi", {}, ...named(row[0])));
    const line = body.appendChild(element("tr", {}, name, ...VIEWS.map((view, v) => measured(row, 1 + 3 * v, view, state.unit, range))));
    if (at === token.chosen) {
      line.className = "chosen";
      name.append(element("span", { className: "unseen" }, " (chosen)"));
    }
  }
  if (token.rows.length <= FEW) return [table];
  const text = state.all ? "Show fewer" : `Show all ${token.rows.length}`;
  return [table, element("button", { type: "button", className: "all-rows" }, text)];
}

// As in the paper's case study: for each word a group of three bars.
function tracked(token, state) {
  if (!token.tracked.length) return [];
  const range = rangeOf(token.tracked, state.unit, 2);
  const groups = token.tracked.map((row) => {
    const table = element("table", {}, element("caption", {}, element("bdi", {}, row[0])));
    const body = table.appendChild(element("tbody"));
    VIEWS.forEach((view, v) => {
      const name = element("th", { scope: "row" }, view);
      body.append(element("tr", {}, name, measured(row, 2 + 3 * v, view, state.unit, range)));
    });
    return table;
  });
  return [element("h4", {}, "Tracked words here"), element("div", { className: "groups" }, ...groups)];
}

// A cell: number, bar, rank. A row holds logit, logprob, rank from `at` on.
function measured(row, at, view, unit, [low, high]) {
  const value = valueOf(row, at, unit);
  const fill = element("i", { className: view.toLowerCase() });
  const share = (edge) => (100 * (edge - low)) / (high - low || 1);
  fill.style.left = `${share(Math.min(0, value))}%`;
  fill.style.width = `${share(Math.max(0, value)) - share(Math.min(0, value))}%`;
  const bar = element("span", { className: "bar" }, fill);
  bar.style.setProperty("--zero", `${share(0)}%`);
  bar.setAttribute("aria-hidden", "true");
  const rank = element("span", { className: "rank" }, element("span", { className: "unseen" }, "rank "), String(row[at + 2]));
  const number = element("span", { className: "number" }, unit === "logit" ? plain(value) : chance(value));
  return element("td", {}, element("div", { className: "measured" }, number, bar, rank));
}

function valueOf(row, at, unit) {
  return unit === "logit" ? row[at] : Math.exp(row[at + 1]);
}

// Bars start at 0 whatever the values are; probabilities have the same axis at every token.
function rangeOf(rows, unit, first) {
  if (unit === "probability") return [0, 1];
  const values = rows.flatMap((row) => [0, 3, 6].map((v) => row[first + v]));
  return [Math.min(0, ...values), Math.max(0, ...values)];
}

function sortWords(event) {
  const button = event.target.closest("[data-sort]");
  if (button === null) return;
  const head = button.parentElement;
  const body = button.closest("table").tBodies[0];
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const value = (row) => Number(row.cells[button.dataset.sort].dataset.value);
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  body.append(...[...body.rows].sort((one, two) => sign * (value(one) - value(two))));
}

function heading(text, view) {
  const key = view ? [element("i", { className: `key ${view}` })] : [];
  return element("th", { scope: "col" }, ...key, text);
}

// A token's text; the space that most tokens begin with is there, but faint.
function named(text) {
  const spaces = text.length - text.trimStart().length;
  return [element("span", { className: "space" }, "␣".repeat(spaces)), text.slice(spaces)];
}

function plain(value) {
  return value.toFixed(2).replace(/^-0.00$/, "0.00").replace("-", "−");
}

function signed(value) {
  return (value < 0 ? "" : "+") + plain(value);
}

function chance(value) {
  return value < 0.00005 ? "<0.0001" : value.toFixed(4);
}

document.querySelector(".by").addEventListener("change", (event) => {
  document.body.classList.remove("by-grounding", "by-delta");
  document.body.classList.add(event.target.value);
});
document.querySelectorAll(".trace").forEach(enliven);
