"use strict";
// Filters and details. Texts enter the page as text nodes only, so nothing in them is ever read as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const colors = JSON.parse(document.getElementById("colors").textContent);
const rows = [...document.querySelectorAll("#rows > tr")];
const fields = Object.fromEntries([...document.querySelectorAll("#filters [name]")].map((field) => [field.name, field]));
const MOVE = ["before", "after", "from", "to"];
let move = {}, moved = null;

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}
const words = (name) => name.replaceAll("_", " ");
const text = (value, attributes = {}) => el("div", { class: "text", dir: "auto", ...attributes }, value);
const apart = (value) => el("bdi", {}, value); // what is written right to left in it stays in it
const code = (value) => el("code", { dir: "auto" }, value);
const by = (who) => (who ? ` by ${who === "lm" ? "the LM" : who}` : "");
const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

function chip(outcome) {
  const swatch = el("span", { class: "swatch" });
  swatch.style.background = colors.outcomes[outcome];
  return el("span", { class: "chip" }, swatch, words(outcome));
}

// Details

function detail(one) {
  const gold = one.answerable ? one.gold.join(" · ") || "(no short answer)" : "not answerable from the documents";
  const evidence = one.gold_ids.length ? [" · evidence ", apart(one.gold_ids.join(", "))] : [];
  const chosen = fields.program.value;
  const names = data.programs.filter((name) => one.runs[name] && (!chosen || name === chosen));
  return el("div", {},
    el("div", { class: "gold-line" },
      text(one.question, { class: "text main" }), el("div", { class: "text quiet" }, "gold: ", apart(gold), ...evidence)),
    el("div", { class: "runs" }, ...names.map((name) => run(name, one.runs[name], one))));
}

function run(name, result, one) {
  const dot = el("span", { class: "dot" });
  dot.style.background = colors.programs[name];
  const card = el("div", { class: "run" }, el("h4", {}, el("span", {}, dot, name), chip(result.outcome)));
  const why = [result.rank === null ? "" : `rank ${result.rank}`, result.detail].filter(Boolean).join(" · ");
  if (why && result.detail !== result.error) card.append(text(why, { class: "text quiet" }));
  if (result.error) card.append(text(result.error, { class: "text error" }));
  if (result.grading_error) card.append(text(`not graded: ${result.grading_error}`, { class: "text error" }));
  if (result.prediction) card.append(...prediction(result.prediction, one));
  card.append(scores(result.scores), el("p", { class: "facts" }, usage(result)));
  return card;
}

function prediction(made, one) {
  const passages = made.context.map((place) => data.passages[place]);
  const titles = Object.fromEntries(passages.map((passage) => [passage.id, passage.title]));
  const stop = [made.abstained ? "abstained" : "answered", `stopped: ${words(made.stop_reason)}`];
  if (made.verdict) stop.push(`verdict: ${made.verdict}`);
  const parts = [text(made.answer || "(empty)", { class: "text answer" }), el("p", { class: "facts" }, stop.join(" · "))];
  if (made.question && made.question !== one.question) parts.push(text(`searched for: ${made.question}`, { class: "text quiet" }));
  if (made.error) parts.push(text(made.error, { class: "text error" }));
  parts.push(el("h5", {}, "Citations"), made.citations.length
    ? el("ul", {}, ...made.citations.map((id) => el("li", {}, code(id), " ", apart(titles[id] ?? "(was not shown)"), ...tags(id, one))))
    : el("p", { class: "facts" }, "none"));
  parts.push(el("h5", {}, plural(made.hops.length, "hop")), ...made.hops.map((hop, place) => hopOf(hop, place + 1, made, one)));
  const quotes = made.hops.flatMap((hop) => hop.quotes);
  parts.push(el("h5", {}, `Evidence shown: ${plural(passages.length, "passage")}`),
    ...passages.map((passage, place) => passageOf(passage, place + 1, quotes, made, one)));
  return parts;
}

function hopOf(hop, number, made, one) {
  const box = el("div", { class: "hop" }, el("p", {}, el("b", {}, `${number}. ${hop.tool}`), by(hop.decided_by),
    el("span", { class: "quiet" }, ` · ${hop.seconds.toFixed(2)} s · `), code(hop.query)));
  const line = (label, value) => value && box.append(el("p", {}, el("span", { class: "quiet" }, `${label}: `), apart(value)));
  line("goal", [hop.query, one.question, made.question].includes(hop.goal) ? "" : hop.goal);
  line("filters", hop.filters);
  line("verdict", hop.verdict && hop.verdict + by(hop.judged_by));
  line("missing", hop.missing);
  hop.quotes.forEach((quote) => line("quote", `“${quote}”`));
  if (hop.error) box.append(text(hop.error, { class: "text error" }));
  const kept = new Set(hop.kept), judged = new Set(hop.judged);
  const hits = hop.hits.map(([rank, score, id]) => el("tr", {}, el("td", {}, `${rank}`), el("td", {}, score.toFixed(3)),
    el("td", {}, code(id), ...tags(id, one, made, judged), kept.has(id) ? "" : el("span", { class: "tag" }, "seen before"))));
  box.append(hits.length ? el("details", {}, el("summary", {}, plural(hop.n_hits, "hit")), el("table", {}, ...hits),
    hop.n_hits > hits.length ? el("p", { class: "quiet" }, `and ${hop.n_hits - hits.length} further down`) : "") : el("p", { class: "quiet" }, "no hit"));
  return box;
}

function tags(id, one, made = null, judged = new Set()) {
  const isGold = one.gold_ids.includes(id) || one.gold_ids.includes(id.replace(/#[^#]*$/, ""));
  const names = { gold: isGold, cited: made?.citations.includes(id), judged: judged.has(id) };
  return Object.keys(names).filter((name) => names[name]).map((name) => el("span", { class: "tag" }, name));
}

function passageOf(passage, number, quotes, made, one) {
  const head = el("summary", {}, `[${number}] `, code(passage.id), " ", apart(passage.title), ...tags(passage.id, one, made));
  const box = el("details", { class: "passage" }, head, el("div", { class: "text", dir: "auto" }, ...marked(passage.text, quotes, one.gold)));
  box.open = made.citations.includes(passage.id);
  return box;
}

// Cut a text at every quote of the judge and every accepted answer, and mark those.
function marked(whole, quotes, gold) {
  const wanted = [...quotes.map((quote) => [quote.trim(), ""]), ...gold.map((answer) => [answer.trim(), "gold"])]
    .filter(([part]) => part.length > 1);
  const pieces = [];
  let rest = whole;
  while (rest) {
    const found = wanted.map(([part, kind]) => [rest.indexOf(part), part, kind]).filter(([place]) => place >= 0)
      .sort((a, b) => a[0] - b[0] || b[1].length - a[1].length)[0];
    if (!found) break;
    const [place, part, kind] = found;
    pieces.push(rest.slice(0, place), el("mark", kind ? { class: kind } : {}, part));
    rest = rest.slice(place + part.length);
  }
  return [...pieces, rest];
}

function scores(all) {
  const names = Object.keys(all);
  if (!names.length) return el("p", { class: "facts" }, "no scores");
  const head = ["combined", "answer_score"].filter((name) => name in all).map((name) => `${words(name)} ${all[name].toFixed(3)}`);
  const table = el("table", {}, ...names.map((name) => el("tr", {}, el("td", {}, words(name)), el("td", {}, all[name].toFixed(3)))));
  return el("details", { class: "facts" }, el("summary", {}, head.join(" · ") || "scores"), table);
}

function usage(result) {
  const spent = result.prediction?.usage;
  if (!spent) return `${result.seconds.toFixed(1)} s`;
  const parts = [plural(spent.lm_calls, "LM call")];
  if (spent.cached_calls) parts.push(`${spent.cached_calls} cached`);
  parts.push(`${spent.prompt_tokens.toLocaleString("en")} + ${spent.completion_tokens.toLocaleString("en")} tokens`);
  if (spent.parse_failures) parts.push(`${spent.parse_failures} unparsed`);
  if (spent.truncations) parts.push(`${spent.truncations} cut off`);
  if (spent.cost_usd) parts.push(`$${spent.cost_usd.toPrecision(3)}`);
  return [...parts, `${result.seconds.toFixed(1)} s`].join(" · ");
}

function open(row, wanted) {
  const button = row.querySelector("button.open");
  const next = row.nextElementSibling?.classList.contains("detail") ? row.nextElementSibling : null;
  next?.remove();
  button.setAttribute("aria-expanded", String(wanted));
  if (wanted) {
    const cell = el("td", { colspan: row.cells.length }, detail(data.cases[row.dataset.case]));
    row.after(el("tr", { class: "detail" }, cell));
  }
}
const isOpen = (row) => row.querySelector("button.open").getAttribute("aria-expanded") === "true";

// Filters; they stand in the address, so that a view can be linked to

const haystacks = data.cases.map((one) => [one.id, one.question, ...one.gold,
  ...Object.values(one.runs).map((result) => result.prediction?.answer ?? result.error ?? "")].join("\n").toLowerCase());

function matches(one, place) {
  const outcomes = data.programs.filter((name) => one.runs[name]).map((name) => one.runs[name].outcome);
  const { program, outcome, kind, lang, q, differ } = fields;
  if (program.value && !one.runs[program.value]) return false;
  const own = program.value ? [one.runs[program.value].outcome] : outcomes;
  if (outcome.value && !own.includes(outcome.value)) return false;
  if (kind.value && one.kind !== kind.value) return false;
  if (lang.value && one.lang !== lang.value) return false;
  if (differ.checked && new Set(outcomes).size < 2) return false;
  if (moved && !moved.has(one.id)) return false;
  return haystacks[place].includes(q.value.trim().toLowerCase());
}

function findMoved() {
  if (!move.before) return null;
  const pair = data.moves.find((one) => one.before === move.before && one.after === move.after);
  return new Set(pair?.ids[`${move.from} ${move.to}`] ?? []);
}

function show() {
  let n = 0;
  moved = findMoved();
  for (const row of rows) {
    const fits = matches(data.cases[row.dataset.case], Number(row.dataset.case));
    row.hidden = !fits;
    n += fits;
    if (!fits) open(row, false);
    else if (isOpen(row)) open(row, true);
    data.programs.forEach((name, place) => row.cells[4 + place].classList.toggle("faint", Boolean(fields.program.value) && name !== fields.program.value));
  }
  document.getElementById("shown").textContent = n === rows.length ? plural(n, "case") : `${n} of ${plural(rows.length, "case")}${n ? "" : ": none fits, clear the filters"}`;
  const remark = document.getElementById("move");
  remark.replaceChildren();
  if (move.before) {
    const button = el("button", { type: "button" }, `${move.before}: ${words(move.from)} → ${move.after}: ${words(move.to)} ✕`);
    button.onclick = () => { move = {}; show(); };
    remark.append(button);
  }
  const state = new URLSearchParams(move);
  for (const [name, field] of Object.entries(fields)) {
    const value = field.type === "checkbox" ? (field.checked ? "1" : "") : field.value;
    if (value) state.set(name, value);
  }
  const hash = state.toString();
  if (hash || location.hash.includes("=")) history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

function set(values) {
  for (const [name, field] of Object.entries(fields)) {
    if (field.type === "checkbox") field.checked = Boolean(values[name]);
    else field.value = values[name] ?? "";
    if (field.tagName === "SELECT" && field.selectedIndex < 0) field.value = "";
  }
  move = values.before ? Object.fromEntries(MOVE.map((name) => [name, values[name] ?? ""])) : {};
  show();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-set]");
  if (!button) return;
  set(JSON.parse(button.dataset.set));
  document.getElementById("cases").scrollIntoView();
});
document.getElementById("rows").addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-case]");
  if (row && !getSelection().toString()) open(row, !isOpen(row));
});
for (const field of Object.values(fields)) field.addEventListener("input", show);
document.getElementById("clear").onclick = () => set({});
document.getElementById("open-all").onclick = () => rows.filter((row) => !row.hidden).forEach((row) => open(row, true));

const pair = document.getElementById("pair");
function showPair() {
  for (const box of document.querySelectorAll(".pair")) box.hidden = box.dataset.pair !== pair.value;
}
if (pair) {
  pair.oninput = showPair;
  showPair();
}
function follow() {
  if (!location.hash.includes("=")) return;
  const wanted = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  set(wanted);
  const row = rows.find((one) => data.cases[one.dataset.case].id === wanted.open);
  if (row) open(row, true);
  document.getElementById("cases").scrollIntoView();
}
addEventListener("hashchange", follow);
follow();
