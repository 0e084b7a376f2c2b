// The page: its state is the address; whatever happens changes the address, and the address is then shown.
import * as api from "./api.js";
import { Cascade } from "./cascade.js";
import { Compare, difference } from "./compare.js";
import { Controls } from "./controls.js";
import * as reader from "./document.js";
import { byId, counted, el, milliseconds, whole } from "./dom.js";
import * as filter from "./filter.js";
import { listen } from "./keys.js";
import * as latency from "./latency.js";
import { redraw } from "./move.js";
import { byPassages } from "./passages.js";
import { parse, print } from "./pipeline.js";
import * as results from "./results.js";
import * as stages from "./stages.js";
import { address, asksOther, read } from "./state.js";
import * as terms from "./terms.js";

const WIDE = matchMedia("(min-width: 60rem)");
let state = read();
let info = null;
let answers = null; // {a, b}: what is shown, and b only when comparing
let asking = new AbortController();
let controls = {};

const actions = {
  open: (id) => go({ open: id }),
  follow: (id) => {
    go({ doc: id === state.doc ? "" : id });
    if (state.doc) showChart();
  },
  hover: (id) => point(id),
  redrawn: () => showFollowed(),
  title: (id) =>
    api.fetchTitle(id).then(
      (title) => cascade.named(id, title),
      () => undefined,
    ),
};
const cascade = new Cascade(byId("cascade"), byId("readout"), actions);
const compare = new Compare(byId("double"), actions);

/** To another state, as a step that "back" undoes. */
function go(changes) {
  const next = { ...state, ...changes };
  if (address(next) === address(state)) return;
  history.pushState({ opened: next.open !== "" && !state.open }, "", address(next));
  become(next);
}

/** The step that opened the document is taken back, so that "back" does not open it again. */
function closeDocument() {
  if (!state.open) return;
  const next = { ...state, open: "" };
  const { opened } = history.state ?? {};
  become(next);
  if (opened) history.back();
  else history.replaceState(null, "", address(next));
}

function become(next) {
  const before = state;
  state = next;
  if (before.q !== next.q) byId("query").value = next.q;
  showControls();
  if (asksOther(before, next)) search();
  else showFollowed();
  showOpen();
}

const pipelineA = () => state.a || info.pipeline;

const COUNTS = [5, 10, 20, 50, 100];

function showCounts() {
  const most = info.limits?.results ?? 100;
  const counts = [...new Set([...COUNTS.filter((count) => count <= most), state.k])].sort((a, b) => a - b);
  byId("count").replaceChildren(
    ...counts.map((k) => el("option", { value: k, selected: k === state.k }, whole(k))),
  );
}

function showControls() {
  showCounts();
  byId("compare-toggle").setAttribute("aria-pressed", String(Boolean(state.b)));
  byId("controls-b").hidden = !state.b;
  document.body.classList.toggle("comparing", Boolean(state.b));
  byId("pipeline-text").textContent = state.b ? `${pipelineA()}  |  ${state.b}` : pipelineA();
  filter.show(state);
  controls.a.render(pipelineA());
  if (state.b) controls.b.render(state.b);
}

async function search() {
  asking.abort();
  asking = new AbortController();
  const mine = asking;
  byId("notices").replaceChildren();
  if (!state.q.trim()) return showEmpty();
  document.title = `${state.q} – tamis`;
  busy(true);
  let begun = false; // whether a ranking of this search is shown
  const draw = (a, b) => {
    if (mine !== asking) return;
    answers = { a, b };
    showAnswers(begun);
    begun = true;
  };
  const ask = (pipeline, arrived) => api.search(state, pipeline, mine.signal, arrived);
  try {
    // of two pipelines there is nothing to compare before both are done
    const [a, b] = await Promise.all([
      ask(state.a, state.b ? null : (answer) => draw(answer, null)),
      state.b ? ask(state.b) : null,
    ]);
    draw(a, b);
  } catch (error) {
    if (mine !== asking || error.name === "AbortError") return;
    if (begun) breakOff(error);
    else fail(error);
  }
  if (mine === asking) busy(false);
}

function busy(on) {
  byId("progress").hidden = !on;
  for (const id of ["single", "double"]) byId(id).setAttribute("aria-busy", String(on));
  if (!on) return;
  say("Searching …");
}

/** What is found so far, and after which stage. */
function say(words, answer = null) {
  byId("status").textContent = words;
  stages.render(byId("stages"), answer);
  byId("offer").replaceChildren();
}

function showEmpty() {
  answers = null;
  document.title = "tamis";
  busy(false);
  show("empty");
  say("");
  byId("empty-words").textContent =
    `${counted(info.documents, "document")}. The first stage finds candidates fast; ` +
    "each later stage reads fewer of them, with more care.";
  const example = (text) => el("li", {}, el("button", { type: "button", click: () => ask(text) }, text));
  byId("examples").replaceChildren(...(info.examples ?? []).map(example));
  byId("examples-title").hidden = byId("examples").hidden = !info.examples?.length;
  if (document.activeElement === document.body) byId("query").focus();
}

function ask(text) {
  byId("query").value = text;
  go({ q: text, doc: "", open: "" });
}

/** Exactly one of the parts of the page. */
function show(part) {
  for (const id of ["empty", "single", "double"]) byId(id).hidden = id !== part;
  byId("count-label").hidden = part !== "single" && part !== "double";
}

/** Whether finer rankings are to come. */
const awaited = (answer) => answer.final === false;

/** `moving`: from the ranking of an earlier stage of the same search. */
function showAnswers(moving = false) {
  const { a, b } = answers;
  const found = a.results.length + (b?.results.length ?? 0);
  show(found ? (b ? "double" : "single") : "");
  say(status(a, b), found && !b ? a : null);
  for (const id of ["single", "double"]) byId(id).setAttribute("aria-busy", "false");
  byId("notices").replaceChildren(...suggestion(a));
  if (!found) {
    if (awaited(a)) return;
    const words = a.note ?? "no document holds a word of this query: try other words, or fewer";
    byId("notices").prepend(el("p", { class: "notice" }, sentence(words)));
    return;
  }
  if (b) compare.render(a, b);
  else {
    compare.clear();
    showSingle(a, moving);
  }
  showFollowed(!moving);
  if (!awaited(a)) showOpen();
  terms.tidy();
}

/** What the server says is for the command line too, where it begins small and has no full stop. */
const sentence = (words) => `${words[0].toUpperCase()}${words.slice(1)}.`;

function showSingle(answer, moving) {
  if (!awaited(answer)) {
    byId("notices").append(...notices(answer));
    byId("offer").replaceChildren(...offer(answer));
  }
  const list = byId("results");
  const draw = () => results.render(list, answer, actions);
  if (moving) redraw(list, draw);
  else draw();
  cascade.render(answer);
  latency.render(byId("latency"), answer);
  const coming = awaited(answer) ? answer.planned.slice(answer.after).map((name) => `${name} …`) : [];
  byId("cascade-words").textContent = answer.stages
    .map((each) => `${each.stage} ${whole(each.kept)}`)
    .concat(coming)
    .join(" → ");
}

/** A query with similar words, where no document has a word of this one. */
function suggestion({ suggestion: query }) {
  if (!query) return [];
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // in a new tab or window
    event.preventDefault();
    ask(query);
  };
  const href = address({ ...state, q: query, doc: "", open: "" });
  return [el("p", { class: "suggestion" }, "Did you mean ", el("a", { href, click: follow }, query), "?")];
}

function notices(answer) {
  if (answer.complete) return [];
  const words = `The time was up after ${answer.finished}: this is its ranking.`;
  const remedy = answer.retry_after
    ? `The server is busy: search again in ${answer.retry_after} s.`
    : "Fewer candidates take less time; the server's --deadline allows more.";
  return [el("p", { class: "notice" }, `${words} ${remedy}`)];
}

/** Where the last model read only the beginnings of texts: a pipeline that reads them whole. */
function offer(answer) {
  const cut = answer.stages.findLast((stage) => stage.inferences)?.truncated;
  const other = cut ? byPassages(pipelineA()) : "";
  if (!other) return [];
  const change = () => go({ a: other });
  return [
    terms.term("cut", `${whole(cut)} cut to fit`),
    ". ",
    el("button", { type: "button", click: change }, "Rank by passages"),
  ];
}

function status(a, b) {
  if (b) return `${difference(a, b)}.`;
  if (awaited(a)) return `${counted(a.results.length, "result")} of ${a.finished} so far`;
  return `${counted(a.results.length, "result")} in ${milliseconds(a.ms)}`;
}

/** An error after a ranking is shown: what has arrived stays. */
function breakOff(error) {
  const notice = el("p", { class: "notice error", role: "alert" }, error.message);
  byId("notices").replaceChildren(notice);
  answers.a = { ...answers.a, final: true };
  say(status(answers.a, null), answers.a);
  showOpen();
}

function fail(error) {
  answers = null;
  show("");
  say("");
  const notice = el("p", { class: "notice error", role: "alert" }, error.message);
  byId("notices").replaceChildren(notice);
  // 403: the key may not search; one that may can be used in its place
  if (error.status === 401 || (error.status === 403 && api.hasKey())) notice.after(keyForm());
}

function keyForm() {
  const field = el("input", { type: "password", "aria-label": "Key", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    api.rememberKey(field.value);
    byId("notices").replaceChildren();
    start();
  };
  return el("form", { class: "key", submit }, field, el("button", { type: "submit" }, "Use this key"));
}

/** The followed document stands out wherever it is drawn. */
function showFollowed(scroll = true) {
  cascade.follow(state.doc);
  for (const node of document.querySelectorAll(".card, .joins .line")) {
    const followed = node.dataset.id === state.doc;
    node.classList.toggle("followed", followed);
    node.querySelector(".follow")?.setAttribute("aria-pressed", String(followed));
  }
  const card = document.querySelector(".single .card.followed");
  if (scroll && WIDE.matches && card && !card.contains(document.activeElement))
    card.scrollIntoView({ block: "nearest" });
}

/** Where the chart is folded up above the results. */
function showChart() {
  if (WIDE.matches) return;
  const box = byId("cascade-box");
  box.open = true;
  requestAnimationFrame(() => box.scrollIntoView({ block: "start" }));
}

/** The document under the pointer or with the focus. Where the chart stands above the results it stays out of
 *  this: its words would push the results away from under the finger. */
function point(id) {
  if (WIDE.matches && answers && !answers.b) cascade.point(id);
  for (const node of document.querySelectorAll(".double .card, .joins .line"))
    node.classList.toggle("pointed", id !== "" && node.dataset.id === id);
}

function showOpen() {
  if (!state.open) return reader.hide();
  const holds = (answer) => answer?.results.some((result) => result.id === state.open);
  // a link to an open document: its words are marked once the search is there
  if (state.q && !answers) return;
  const answer = holds(answers?.b) && !holds(answers?.a) ? answers.b : answers?.a;
  reader.show(state.open, answer, answer?.query ?? state.q);
}

/** The other side of a comparison, to begin with: what the later stages are worth. */
function firstOther() {
  const stages = parse(pipelineA());
  if (stages?.length > 1) return print(stages.slice(0, 1));
  return Object.hasOwn(info.models, "mono") ? "bm25 % 100 >> mono" : "ql % 100";
}

function toggleTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme !== "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  try {
    localStorage.setItem("tamis-theme", dark ? "dark" : "light");
  } catch {
    // storage may be forbidden: then the choice holds for this page
  }
  showTheme();
}

function showTheme() {
  const { theme } = document.documentElement.dataset;
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  byId("theme").setAttribute("aria-pressed", String(dark));
}

async function start() {
  try {
    info = await api.info();
  } catch (error) {
    return fail(error);
  }
  if (info.limits?.query) byId("query").maxLength = info.limits.query;
  byId("named").replaceChildren(...Object.keys(info.named ?? {}).map((value) => el("option", { value })));
  const same = (text) => (text === info.pipeline ? "" : text);
  controls = {
    a: new Controls(byId("controls-a"), "Pipeline A", info, (text) => go({ a: same(text) })),
    b: new Controls(byId("controls-b"), "Pipeline B", info, (text) => go({ b: text })),
  };
  filter.start(info, (changes) => go({ ...changes, doc: "", open: "" }));
  byId("query").value ||= state.q;
  showControls();
  search();
  showOpen();
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const q = byId("query").value.trim();
  if (!info) return;
  if (q === state.q) search();
  else go({ q, doc: "", open: "" });
});
byId("compare-toggle").addEventListener("click", () => info && go({ b: state.b ? "" : firstOther() }));
byId("count").addEventListener("change", () => go({ k: Number(byId("count").value) }));
byId("theme").addEventListener("click", toggleTheme);
byId("document-close").addEventListener("click", closeDocument);
byId("document").addEventListener("close", closeDocument);
addEventListener("popstate", () => info && become(read()));
listen({ point, unfollow: () => go({ doc: "" }) });
terms.listen();
for (const id of ["pipelines", "cascade-box"]) byId(id).open = WIDE.matches;
WIDE.addEventListener("change", () => (byId("cascade-box").open = byId("pipelines").open = WIDE.matches));
showTheme();
start();
