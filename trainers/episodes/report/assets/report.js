"use strict";
// The script of report.html. The page holds compressed JSON: an index of all episodes, unpacked at the start, and the
// episodes in chunks, unpacked when one is opened or searched. Models and tools wrote the texts of episodes, so these only
// become text nodes.

const ROW = 72; // height of a row of the list in pixels, as in report.css
const $ = (selector, root = document) => root.querySelector(selector);

/** Make an element: make("p.note", {title: "…"}, "text", child). Null and false are left out. */
function make(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
/** Shorten a long path in a name to its last two folders. */
const short = (name) => name.replace(/(?:[^\s/()]*\/[^\s/()]+)*(\/[^\s/()]+\/[^\s/()]+)/g, (path, end) => (path.length > 32 ? `…${end}` : path));
const count = (value) => value.toLocaleString("en");

// -- data ----------------------------------------------------------------------------------------------------------

let parts = [];
let episodes = []; // the index, in the order of the files
let sameQuestion = new Map(); // question -> its episodes

/** Unpack the JSON in a block of the page; null if there is no such block. */
async function unpack(id) {
  const block = document.getElementById(id);
  if (!block) return null;
  const text = atob(block.textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const unpacked = new Map();
/** Like unpack, with a cache. */
function unpackOnce(id) {
  if (!unpacked.has(id)) unpacked.set(id, unpack(id));
  return unpacked.get(id);
}

const readBody = async (episode) => (await unpackOnce(`chunk-${episode.chunk}`))[episode.at];
const readTokens = async (episode) => (await unpackOnce(`tokens-${episode.chunk}`))[episode.at];

/** An entry of a question's kind in words: "yes/no", "1 hop". A chain is known by its hops. */
function kindName([name, value]) {
  if (name === "type") return { yes_no: "yes/no", chain: "" }[value] ?? value.replaceAll("_", " ");
  if (name === "hops" && value === "0") return "";
  return value === "1" ? `1 ${name.replace(/s$/, "")}` : `${value} ${name.replaceAll("_", " ")}`;
}

function takeEpisodes(data) {
  const bits = Object.fromEntries(data.outcomes.map((name, bit) => [name, 1 << bit]));
  for (const episode of data.episodes) {
    for (const [name, bit] of Object.entries(bits)) episode[name] = Boolean(episode.flags & bit);
    episode.wrong = !episode.right;
    episode.kinds = Object.entries(episode.kind).map(kindName).filter(Boolean);
    episode.low = [episode.text, ...episode.golds, episode.id, episode.agent].join("\n").toLowerCase();
    if (!sameQuestion.has(episode.question)) sameQuestion.set(episode.question, []);
    sameQuestion.get(episode.question).push(episode);
  }
  largestReturn = data.episodes.reduce((largest, episode) => Math.max(largest, Math.abs(episode.return ?? 0)), 0);
  episodes = data.episodes.sort((a, b) => a.part - b.part || a.place - b.place);
}

// -- state: in the address, so that a link leads to an episode -------------------------------------------------------

const EMPTY = { view: "overview", q: "", outcome: "", part: "", agent: "", step: "", kind: "", sort: "", key: "", of: "", beside: "", show: "text" };
const state = { ...EMPTY };

function readAddress() {
  const given = location.hash.slice(1);
  const named = given === "overview" || given === "episodes" ? { view: given } : Object.fromEntries(new URLSearchParams(given));
  Object.assign(state, EMPTY, Object.fromEntries(Object.entries(named).filter(([name]) => name in EMPTY)));
  if (!$("#episodes")) state.view = "overview";
}

function writeAddress() {
  const changed = Object.entries(state).filter(([name, value]) => value !== EMPTY[name]);
  history.replaceState(null, "", `#${new URLSearchParams(changed)}`);
}

function show(view) {
  state.view = view;
  $("#overview").hidden = view !== "overview";
  if ($("#episodes")) $("#episodes").hidden = view !== "episodes";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "overview") drawCurves();
  else refresh();
  writeAddress();
}

// -- filters and the list --------------------------------------------------------------------------------------------

const OUTCOMES = { "": "All", right: "Right", wrong: "Wrong", invalid: "Invalid turn", truncated: "Truncated", failed: "Tool failed" };
const SORTS = {
  "": ["in order", null],
  question: ["by question", (a, b) => a.question - b.question],
  best: ["best first", (a, b) => b.score - a.score || b.return - a.return],
  worst: ["worst first", (a, b) => a.score - b.score || a.return - b.return],
  turns: ["longest first", (a, b) => b.turns - a.turns],
};
let hasSteps = false, hasEnvs = false, hasTable = false; // whether episodes differ in them
let shown = []; // the episodes in the list
let hits = new Set(); // those whose conversation holds what is searched for
let searches = 0;

const words = () => state.q.toLowerCase().split(/\s+/).filter(Boolean);

function isWanted(episode, sought) {
  return (
    (!state.part || episode.part === Number(state.part)) &&
    (!state.agent || episode.agent === state.agent) &&
    (!state.step || (state.step === "table" ? episode.table : String(episode.step) === state.step)) &&
    (!state.kind || episode.kinds.includes(state.kind)) &&
    (sought.every((word) => episode.low.includes(word)) || hits.has(episode))
  );
}

/** Filter the episodes, and show the list and the numbers beside each outcome. */
function refresh() {
  const sought = words();
  const wanted = episodes.filter((episode) => isWanted(episode, sought));
  for (const button of $("#outcomes").children) {
    const outcome = button.dataset.outcome;
    const number = outcome ? wanted.filter((episode) => episode[outcome]).length : wanted.length;
    $("small", button).textContent = count(number);
    button.setAttribute("aria-pressed", state.outcome === outcome);
    button.hidden = !number && outcome !== state.outcome && outcome !== "";
  }
  shown = state.outcome ? wanted.filter((episode) => episode[state.outcome]) : wanted;
  const order = SORTS[state.sort]?.[1];
  if (order) shown = [...shown].sort(order);
  const right = shown.filter((episode) => episode.right).length;
  $("#found").textContent = shown.length
    ? `${count(shown.length)} episode${shown.length === 1 ? "" : "s"}, ${((100 * right) / shown.length).toFixed(1)} % right`
    : "No episode is like that.";
  $("#rows").style.height = `${shown.length * ROW}px`;
  drawRows();
}

/** Search the conversations too, chunk by chunk. */
async function searchConversations() {
  const mine = ++searches, sought = words();
  hits = new Set();
  if (!sought.length) return;
  const chunks = Map.groupBy ? Map.groupBy(episodes, (e) => e.chunk) : groupBy(episodes, (e) => e.chunk);
  let drawn = performance.now();
  for (const [chunk, own] of chunks) {
    const bodies = await unpackOnce(`chunk-${chunk}`);
    if (mine !== searches) return; // a newer search has begun
    for (const episode of own) {
      const body = bodies[episode.at];
      body.low ??= [...body.messages.map((message) => message.text), ...body.turns.map((turn) => turn.last ?? "")].join("\n").toLowerCase();
      if (sought.every((word) => body.low.includes(word))) hits.add(episode);
    }
    if (performance.now() - drawn > 150) {
      refresh();
      drawn = performance.now();
    }
  }
  refresh();
  $("#search").dataset.done = state.q;
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return groups;
}

/** Only the rows in sight are in the page. */
function drawRows() {
  const list = $("#list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  const rows = [];
  for (let i = first; i < last; i++) rows.push(row(shown[i], i));
  $("#rows").replaceChildren(...rows);
  list.setAttribute("aria-activedescendant", `row-${shown.indexOf(opened)}`);
}

/** The number of updates before an episode, in words. */
const when = (episode) => (!hasSteps || episode.step === null ? null : hasTable && episode.table ? "closing table" : stepName(episode.step));
const stepName = (step) => `step ${step}`;
/** Whether the policy had no update yet: its name is then not "Trained with …". */
const isUntrained = (episode) => hasSteps && episode.step === 0 && !episode.table && episode.phase === "evaluation";
const agentName = (episode) => (isUntrained(episode) ? "Untrained policy" : short(episode.agent));

function row(episode, i) {
  const facts = [agentName(episode), when(episode), ...episode.kinds];
  const node = make(
    "div.row",
    { role: "option", id: `row-${i}`, "aria-selected": String(episode === opened), "data-key": episode.key, onclick: () => open(episode) },
    glyph(episode),
    make("p", { dir: "auto" }, episode.text),
    make("p", {}, facts.filter(Boolean).join(" · ")),
    make("p", {}, `return ${signed(episode.return ?? 0)} · ${episode.turns} turn${episode.turns === 1 ? "" : "s"}${marks(episode)}`),
  );
  node.style.top = `${i * ROW}px`;
  return node;
}

const marks = (episode) => ["invalid", "truncated", "failed"].filter((name) => episode[name]).map((name) => ` · ${name === "failed" ? "tool failed" : name}`).join("");

function glyph(episode) {
  const [kind, sign] = episode.failed ? ["warn", "!"] : episode.right ? ["right", "✓"] : ["wrong", "✗"];
  return make(`span.glyph.${kind}`, { "aria-label": kind, role: "img" }, sign);
}

function buildFilters() {
  for (const [outcome, label] of Object.entries(OUTCOMES)) {
    const set = () => ((state.outcome = outcome), restart());
    $("#outcomes").append(make("button", { type: "button", "data-outcome": outcome, onclick: set }, label, make("small")));
  }
  const distinct = (values) => [...new Set(values)].filter((value) => value !== null && value !== "");
  const steps = distinct(episodes.map((episode) => episode.step)).sort((a, b) => a - b);
  addSelect("part", "all runs", parts.map((part, i) => [i, part.name]));
  addSelect("agent", "all agents", distinct(episodes.map((episode) => episode.agent)).map((name) => [name, short(name)]));
  hasSteps = steps.length > 1;
  hasEnvs = distinct(episodes.map((episode) => episode.env)).length > 1;
  hasTable = distinct(episodes.map((episode) => episode.table)).length > 1; // else all episodes belong to the table
  const table = hasTable ? [["table", "closing table"]] : [];
  if (hasSteps || hasTable) addSelect("step", "all steps", [...table, ...steps.map((step) => [step, step ? stepName(step) : "step 0 (untrained)"])]);
  addSelect("kind", "all kinds", distinct(episodes.flatMap((episode) => episode.kinds)).sort().map((kind) => [kind, kind]));
  addSelect("sort", "", Object.entries(SORTS).map(([name, [label]]) => [name, label]));
  $("#search").value = state.q;
  $("#search").addEventListener("input", async () => {
    state.q = $("#search").value;
    hits = new Set();
    restart();
    searchConversations();
  });
  $("#filters").addEventListener("submit", (event) => event.preventDefault());
  $("#list").addEventListener("scroll", () => requestAnimationFrame(drawRows));
  new ResizeObserver(drawRows).observe($("#list"));
}

function addSelect(name, all, options) {
  if (options.length < 2) return;
  const entries = all ? [["", all], ...options] : options;
  const select = make("select", { id: `by-${name}`, "aria-label": all || "order" }, ...entries.map(([value, label]) => make("option", { value }, label)));
  select.value = state[name];
  select.addEventListener("change", () => ((state[name] = select.value), restart()));
  $("#selects").append(select);
}

/** Show the list from its top after a change of the filters. */
function restart() {
  $("#list").scrollTop = 0;
  refresh();
  writeAddress();
}

/** Open the next (1) or the previous (-1) episode of the list. */
function move(by) {
  const at = shown.findIndex((episode) => episode === opened);
  const next = shown[Math.min(shown.length - 1, Math.max(0, at + by))];
  if (!next) return;
  const top = shown.indexOf(next) * ROW, list = $("#list");
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  open(next);
}

// -- the reader ------------------------------------------------------------------------------------------------------

const SHOWN_AS = { text: "Conversation", mask: "Tokens: mask", logprob: "Tokens: log-probability", advantage: "Tokens: advantage" };
let opened = null;
let largestReturn = 0; // over all episodes, so that bars of two episodes can be compared
let unfolded = false;

const sameAgent = (episode) => JSON.stringify([episode.part, episode.agent, episode.step, episode.table, episode.sample]);

/** The episodes that can be shown beside an episode: others about its question. */
const others = (episode) => sameQuestion.get(episode.question).filter((other) => other !== episode);

async function open(episode, top = true) {
  opened = episode;
  state.key = episode.key;
  state.of = parts.length > 1 ? String(episode.part) : ""; // runs of other seeds have episodes with the same keys
  document.body.classList.add("reading");
  writeAddress();
  drawRows();
  const beside = state.beside ? others(episode).find((other) => sameAgent(other) === state.beside) : null;
  const pair = beside ? [episode, beside] : [episode];
  const view = pair.every((one) => one.has_tokens) ? state.show : "text";
  const bodies = await Promise.all(pair.map(readBody));
  const columns = view === "text" ? conversations(pair, bodies) : await Promise.all(pair.map((one, i) => tokens(one, bodies[i], view)));
  if (opened !== episode) return; // another one was opened meanwhile
  const two = pair.length > 1;
  const reader = $("#reader");
  reader.replaceChildren(toolbar(episode, pair, view), heading(episode, two), make(two ? "div.columns.two" : "div.columns", {}, ...columns));
  reader.dataset.key = episode.key;
  if (top) reader.scrollTop = 0;
}

function toolbar(episode, pair, view) {
  const candidates = others(episode);
  const label = (one) => [parts.length > 1 ? parts[one.part].name : "", agentName(one), when(one), one.sample ? `attempt ${one.sample + 1}` : "", one.right ? "✓" : "✗"].filter(Boolean).join(" · ");
  const choose = make("select", { id: "beside" }, make("option", { value: "" }, "nothing"), ...candidates.map((one) => make("option", { value: sameAgent(one) }, label(one))));
  choose.value = pair.length > 1 ? sameAgent(pair[1]) : "";
  choose.addEventListener("change", () => ((state.beside = choose.value), open(episode, false)));
  const as = make("select", { id: "show", "aria-label": "shown as" }, ...Object.entries(SHOWN_AS).map(([value, text]) => make("option", { value }, text)));
  as.value = view;
  as.addEventListener("change", () => ((state.show = as.value), open(episode, false)));
  return make("div.tools", {},
    make("button.back", { onclick: closeReader }, "‹ List"),
    make("button", { onclick: () => move(-1), title: "Previous (k)", "aria-label": "previous" }, "↑"),
    make("button", { onclick: () => move(1), title: "Next (j)", "aria-label": "next" }, "↓"),
    make("span.push"),
    pair.every((one) => one.has_tokens) ? as : null,
    view === "text" ? make("button", { onclick: () => fold(!unfolded), id: "unfold", title: "x" }, unfolded ? "Fold results" : "Unfold results") : null,
    candidates.length ? make("label", {}, "Beside", choose) : null,
  );
}

function heading(episode, two) {
  const isBoard = episode.text.split("\n").length > 3;
  const facts = [...episode.kinds, hasEnvs ? episode.env : null, `${episode.split ?? ""} ${episode.instance ?? ""}`.trim(), episode.id];
  return make(two ? "div.question.two-wide" : "div.question", {},
    make(isBoard ? "h2.board" : "h2", { dir: "auto" }, episode.text),
    make("p", {}, episode.golds.length ? make("span", { dir: "auto" }, "Gold ", make("b", {}, episode.golds.join(" / "))) : null,
      ...facts.filter(Boolean).map((fact) => make("span", {}, fact))),
  );
}

const hasAnswer = /<answer>([^]*?)(?:<\/answer>|$)/;

function verdict(episode, body) {
  const said = body.messages.filter((message) => message.role === "assistant").at(-1)?.text.match(hasAnswer)?.[1]?.trim();
  const [kind, word] = episode.failed ? ["warn", "A tool failed"] : episode.right ? ["right", "Right"] : ["wrong", episode.truncated ? "Out of turns" : "Wrong"];
  const facts = [
    parts.length > 1 ? parts[episode.part].name : null, when(episode),
    `${{ em: "EM" }[episode.score_name] ?? episode.score_name ?? "score"} ${episode.score.toFixed(2)}`,
    body.metrics.f1 === undefined ? null : `F1 ${body.metrics.f1.toFixed(2)}`,
    episode.phase !== "training" || body.advantage === null || body.advantage === undefined ? null : `advantage ${signed(body.advantage)}`,
    body.completion_tokens ? `${count(body.prompt_tokens ?? 0)} + ${count(body.completion_tokens)} tokens` : null,
    body.seconds ? `${body.seconds.toFixed(1)} s` : null,
  ];
  return make("div.verdict", {}, make(`span.badge.${kind}`, {}, `${glyph(episode).textContent} ${word}`), make("b", { title: episode.agent }, agentName(episode)),
    said === undefined ? null : make("span", { dir: "auto" }, `answered “${said}”`), ...facts.filter(Boolean).map((fact) => make("span", {}, fact)));
}

/** Terms of a reward as bars from a common zero. */
function bars(terms, scale) {
  const entries = Object.entries(terms).filter(([, value]) => Math.abs(value) > 5e-6); // a sum of rounded terms
  const low = Math.min(0, ...scale), span = Math.max(0, ...scale) - low || 1;
  const zero = (-100 * low) / span;
  return make("div.terms", {}, ...entries.flatMap(([name, value]) => {
    const bar = make(value < 0 ? "i.minus" : "i");
    bar.style.left = `${value < 0 ? zero + (100 * value) / span : zero}%`;
    bar.style.width = `${(100 * Math.abs(value)) / span}%`;
    const track = make("span.track", {}, bar);
    track.style.setProperty("--zero", `${zero}%`);
    return [make("span", {}, name), track, make("span.value", {}, signed(value))];
  }));
}

/** The sum of each reward term over the turns of an episode. */
function totalsOf(body) {
  const totals = {};
  for (const turn of body.turns) for (const [name, value] of Object.entries(turn.terms)) totals[name] = (totals[name] ?? 0) + value;
  return totals;
}

function sums(episode, body, scale) {
  const foundIn = new Map(body.turns.flatMap((turn, i) => (turn.found ?? []).map((title) => [title, i + 1])));
  const evidence = (body.supporting ?? []).map((title) => {
    const turn = foundIn.get(title);
    return make(turn ? "li" : "li.missing", {}, make(turn ? "span.right" : "span", {}, turn ? "☑" : "☐"), make("span", { dir: "auto" }, title), turn ? make("small", {}, `turn ${turn}`) : make("small", {}, "not found"));
  });
  return make("div.sums", {},
    make("div", {}, make("h3", {}, `Return ${signed(episode.return ?? 0)}`), bars(totalsOf(body), scale)),
    evidence.length ? make("div", {}, make("h3", {}, "Evidence"), make("ul.evidence", {}, ...evidence)) : null,
  );
}

/** Episodes side by side: bars of rewards have one scale. */
function conversations(pair, bodies) {
  const ofTurns = bodies.flatMap((body) => body.turns.flatMap((turn) => Object.values(turn.terms)));
  const ofSums = [largestReturn, ...bodies.flatMap((body) => Object.values(totalsOf(body)))];
  return pair.map((episode, i) => conversation(episode, bodies[i], ofTurns, ofSums));
}

/** An episode as a conversation; results of tools are folded. */
function conversation(episode, body, scale, scaleOfSums) {
  const turnOf = new Map(body.turns.map((turn, i) => [turn.message, i]));
  const blocks = [];
  let turn = null, isRewritten = false; // whether what follows is a context that the environment made of earlier turns
  for (const [i, message] of body.messages.entries()) {
    if (turnOf.has(i)) {
      isRewritten = false;
      turn = body.turns[turnOf.get(i)];
      blocks.push(turnBlock(message.text, turn, turnOf.get(i) + 1, scale, episode.phase === "training"));
      if (turn.last) blocks.at(-1).append(...folded(turn.last, callNames(turn), body));
    } else if (isRewritten || (message.role === "system" && i)) {
      isRewritten = true;
      turn = null;
      blocks.push(make("div", {}, ...folded(message.text, [`Context, written anew: ${message.role}`], body)));
    } else if (message.role === "assistant") {
      blocks.push(make("div.turn", {}, saying(message.text)));
    } else if (turn) {
      blocks.at(-1).append(...folded(message.text, callNames(turn), body));
      turn = null;
    } else if (!(message.role === "user" && message.text === episode.text)) {
      blocks.push(make("div", {}, ...folded(message.text, [message.role === "system" ? "Instructions" : message.role], body)));
    }
  }
  return make("section.episode", { "aria-label": episode.agent }, verdict(episode, body), sums(episode, body, scaleOfSums), ...blocks);
}

function turnBlock(text, turn, number, scale, isTrained) {
  const terms = Object.values(turn.terms).some(Boolean);
  return make("div.turn", {},
    make("h3", {}, `Turn ${number}`, turn.invalid ? make("span.wrong", {}, "invalid") : null,
      !isTrained || turn.advantage === null || turn.advantage === undefined ? null : make("span", {}, `advantage ${signed(turn.advantage)}`),
      make("span.push", {}, `reward ${signed(turn.reward)}`)),
    saying(text),
    terms ? bars(turn.terms, scale) : null,
    turn.found?.length ? make("p.found", {}, `✓ found ${turn.found.join(", ")}`) : null,
  );
}

/** The agent's text with greyed tags; thoughts and the answer are set apart. */
function saying(text) {
  const node = make("div.said", { dir: "auto" });
  let inside = "";
  for (const piece of text.split(/(<\/?[a-zA-Z_|]+>)/)) {
    const tag = piece.match(/^<(\/?)([a-zA-Z_|]+)>$/);
    if (tag) inside = tag[1] ? "" : tag[2];
    if (tag) node.append(make("span.tag", {}, piece));
    else node.append(inside === "answer" ? make("span.answer", {}, piece) : inside.startsWith("think") ? make("span.thought", {}, piece) : piece);
  }
  return node;
}

/** A turn's calls in a few words. */
function callNames(turn) {
  return turn.calls.map((call) => {
    let words = call.arguments ?? "";
    try {
      const values = Object.values(JSON.parse(words));
      if (values.length === 1) words = String(values[0]);
    } catch { /* not JSON: as it is */ }
    return `${call.tool}  ${words}${call.fault ? "  (the tool failed)" : ""}`;
  });
}

function folded(text, names, body) {
  const inner = make("div.text", { dir: "auto" });
  const fill = () => inner.childNodes.length || inner.append(...marked(text, body));
  const details = make("details.folded", { ontoggle: fill },
    make("summary", {}, ...(names.length ? names : ["Reply"]).map((name) => make("code", { dir: "auto" }, name)), make("small.push", {}, `${count(text.length)} characters`)), inner);
  if (unfolded && names[0] !== "Instructions") details.open = true;
  return names[0] === "Instructions" ? [details] : [details, make("div.peek", { dir: "auto" }, text.trim().slice(0, 240).replaceAll("\n", " "))];
}

/** A text with marked evidence titles and search words. */
function marked(text, body) {
  const terms = [...(body.supporting ?? []).map((title) => [title, "mark.gold"]), ...words().map((word) => [word, "mark"])].filter(([term]) => term.length > 1);
  const wanted = new Map(terms.map(([term, kind]) => [term.toLowerCase(), kind]));
  if (!wanted.size) return [text];
  const escaped = [...wanted.keys()].sort((a, b) => b.length - a.length).map((term) => term.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return text.split(new RegExp(`(${escaped.join("|")})`, "gi")).filter(Boolean).map((piece) => {
    const kind = wanted.get(piece.toLowerCase());
    return kind ? make(kind, {}, piece) : piece;
  });
}

function fold(open) {
  unfolded = open;
  for (const details of document.querySelectorAll("#reader .turn .folded")) details.open = open;
  if ($("#unfold")) $("#unfold").textContent = open ? "Fold results" : "Unfold results";
}

function closeReader() {
  document.body.classList.remove("reading");
  $("#list")?.focus();
}

// -- tokens ------------------------------------------------------------------------------------------------------------

/** An episode as the tokens that the policy read and sampled, coloured. */
async function tokens(episode, body, view) {
  const sequences = await readTokens(episode);
  const own = sequences.flatMap((runs) => runs.filter((run) => run[0]));
  const largest = Math.max(1e-9, ...own.flatMap((run) => (run[4] ?? []).map(Math.abs)));
  const flow = make("div.tokens", { dir: "auto" });
  let turn = 0;
  for (const [number, runs] of sequences.entries()) {
    if (sequences.length > 1) flow.append(make("h3", {}, `Sequence ${number + 1}: the context was rewritten`));
    for (const run of runs) {
      if (!run[0]) {
        flow.append(make("span.read", { title: `${run[2]} tokens of context` }, run[1]));
        continue;
      }
      turn += 1;
      run[1].forEach((piece, i) => flow.append(token(piece, run, i, view, largest, turn)));
    }
  }
  return make("section.episode", { "aria-label": episode.agent }, verdict(episode, body), legend(view, largest, own), flow);
}

function token(piece, run, i, view, largest, turn) {
  const [logprob, advantage] = [run[3]?.[i], run[4]?.[i]];
  const about = [`token ${run[2][i]}, turn ${turn}`, logprob == null ? "" : `log-probability ${logprob.toFixed(3)} (${(100 * Math.exp(logprob)).toFixed(1)} %)`, advantage == null ? "" : `advantage ${signed(advantage)}`];
  const node = make("span.t", { title: about.filter(Boolean).join("\n") }, piece);
  const [color, strength] = view === "mask" ? ["--accent", 0.3] : view === "logprob" ? ["--hot", logprob == null ? 0 : Math.min(1, -logprob / 4)] : [advantage < 0 ? "--hot" : "--cold", advantage == null ? 0 : Math.abs(advantage) / largest];
  node.style.setProperty("--c", `var(${color})`);
  node.style.setProperty("--p", `${Math.round(75 * strength)}%`);
  return node;
}

function legend(view, largest, own) {
  const patch = (color, strength, text) => {
    const i = make("i");
    i.style.setProperty("--c", `var(${color})`);
    i.style.setProperty("--p", `${strength}%`);
    return make("span", {}, i, text);
  };
  const sampled = own.reduce((sum, run) => sum + run[1].length, 0);
  if (view === "mask") return make("div.legend", {}, patch("--accent", 22, `${count(sampled)} tokens that the policy sampled: mask 1, trained`), make("span", {}, "grey: read, mask 0"));
  if (view === "logprob") return make("div.legend", {}, patch("--hot", 0, "certain"), patch("--hot", 37, "log-probability −2"), patch("--hot", 75, "−4 and below"));
  if (!own.some((run) => run[4])) return make("div.legend", {}, "These episodes were not trained on: they have no advantages.");
  return make("div.legend", {}, patch("--cold", 75, `advantage +${largest.toFixed(2)}`), patch("--cold", 0, "0"), patch("--hot", 75, `−${largest.toFixed(2)}`));
}

// -- curves ------------------------------------------------------------------------------------------------------------

let charts = [];

/** A colour of the style sheet in the current theme, for a canvas. */
function color(name) {
  const probe = make("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** The charts at the top: names of metrics that any run has, each with its series. */
function mainCharts() {
  const score = parts.find((part) => part.score)?.score ?? "em";
  const names = new Set(parts.flatMap((part) => Object.keys(part.metrics)));
  const terms = [...names].filter((name) => name.startsWith("reward/"));
  const wanted = [
    [{ em: "Exact match", success: "Success" }[score] ?? score, [`eval/${score}`, `train/${score}`]],
    ["Loss", ["eval/loss", "train/loss"]],
    ["Return", ["train/return"]], ["Turns", ["eval/turns", "train/turns"]], ["Entropy", ["policy/entropy"]],
    ["Gradient norm", ["policy/grad_norm"]], ...(parts.length > 1 ? [] : [["Reward by term", terms]]),
    ["Evidence found", ["eval/support_recall", "train/support_recall"]],
  ];
  return wanted.map(([title, metrics]) => [title, metrics.filter((name) => names.has(name))]).filter(([, metrics]) => metrics.length);
}

function drawCurves() {
  const trained = parts.filter((part) => part.metrics.step?.length);
  $("#curves").hidden = !trained.length;
  if (!trained.length) return;
  for (const chart of charts) chart.destroy();
  charts = [];
  $("#main-charts").replaceChildren();
  for (const [i, [title, metrics]] of mainCharts().entries()) addChart($("#main-charts"), title, metrics, i === 0);
  const more = $("#more .charts");
  more.replaceChildren();
  const names = [...new Set(parts.flatMap((part) => Object.keys(part.metrics)))].filter((name) => !["step", "seconds", "episodes"].includes(name)).sort();
  $("#more summary").textContent = `All ${names.length} metrics`;
  if ($("#more").open) for (const name of names) addChart(more, name, [name], false);
}

const WHOLE = [1, 2, 5].flatMap((first) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6].map((tens) => first * tens)).sort((a, b) => a - b);
const SERIES = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6"];

/** Runs that differ only in their seed have the same colour. */
const family = (part) => part.name.replace(/-\d+$/, "");

function addChart(parent, title, metrics, wide) {
  const against = $("#against").value;
  const families = [...new Set(parts.map(family))], bySeed = families.length > 1;
  // With several runs, only the held-out curves are drawn.
  if (parts.length > 1 && metrics.length === 2 && parts.some((part) => part.metrics[metrics[0]])) metrics = metrics.slice(0, 1);
  const lines = parts.flatMap((part, p) => metrics.filter((name) => part.metrics[name] && part.metrics[against]).map((name, m) => {
    const light = name.startsWith("train/") && metrics.length > 1;
    const key = parts.length > 1 ? (bySeed ? families.indexOf(family(part)) : p) : light && metrics.length === 2 ? 0 : m;
    const xs = part.metrics[against], ys = part.metrics[name];
    const kept = [...xs.keys()].filter((i) => xs[i] !== null && ys[i] !== null).sort((a, b) => xs[a] - xs[b]);
    const label = [parts.length > 1 ? part.name : "", metrics.length > 1 ? NAMES[name.split("/")[0]] ?? name.split("/")[1] : parts.length > 1 ? "" : "value"].filter(Boolean).join(" ");
    return { data: [kept.map((i) => xs[i]), kept.map((i) => ys[i])], label: label || name, color: color(SERIES[key % SERIES.length]), light, points: name.startsWith("eval/") && kept.length < 60 };
  })).filter((line) => line.data[0].length);
  if (!lines.length) return;
  const box = make(`div.chart${wide ? ".wide" : ""}${lines.length === 1 ? ".single" : ""}`, {}, make("h3", {}, title));
  parent.append(box);
  const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const height = wide ? 260 : 170;
  const chart = new uPlot({
    width: box.clientWidth, height,
    cursor: { y: false, sync: { key: "curves" }, drag: { x: true, y: false }, dataIdx: nearest, points: { size: 6 } },
    scales: { x: { time: false }, y: { range: (u, low, high) => range(low, high, wide) } },
    axes: [{ ...axis, grid: { show: false }, size: 28, incrs: against === "seconds" ? undefined : WHOLE }, { ...axis, size: 46 }],
    series: [
      { label: against === "step" ? "update" : against },
      ...lines.map((line) => ({
        label: line.label, stroke: line.light ? line.color.replace("rgb(", "rgba(").replace(")", ", 0.38)") : line.color,
        width: line.light ? 1 : 1.8, spanGaps: true, points: { show: line.points, size: 5, fill: line.color },
        value: (u, value) => (value === null || value === undefined ? "" : format(value)),
      })),
    ],
    hooks: { draw: [(u) => drawSymptoms(u, against)] },
  }, uPlot.join(lines.map((line) => line.data)), box);
  addTouch(chart);
  charts.push(chart);
}

const NAMES = { eval: "held-out", train: "training batches" };
const format = (value) => (value && Math.abs(value) < 0.001 ? value.toExponential(1) : Number(value.toPrecision(4)).toString());

/** A little room around the values; a share is shown from 0 to 1. */
function range(low, high, wide) {
  if (low === null || low === undefined) return [0, 1];
  if (wide && low >= 0 && high <= 1) return [0, 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** The index of a series' value nearest to the pointer; some lines of the log have no value. */
function nearest(u, series, index) {
  const values = u.data[series];
  if (values[index] !== null && values[index] !== undefined) return index;
  for (let by = 1; by < values.length; by++) {
    for (const at of [index - by, index + by]) if (values[at] !== null && values[at] !== undefined) return at;
  }
  return index;
}

/** Draw a dashed line at each update where the monitor reported a symptom. */
function drawSymptoms(u, against) {
  u.ctx.save();
  u.ctx.strokeStyle = color("--warn");
  u.ctx.setLineDash([4, 4]);
  for (const part of parts) {
    for (const update of part.symptoms) {
      const x = u.valToPos(part.metrics[against]?.[part.metrics.step.indexOf(update)], "x", true);
      if (!(x >= u.bbox.left && x <= u.bbox.left + u.bbox.width)) continue;
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
    }
  }
  u.ctx.restore();
}

/** Two fingers zoom in all charts; one finger shows values, as the browser makes mouse events of it. */
function addTouch(chart) {
  let start = null;
  const spread = (event) => [...event.touches].map((touch) => chart.posToVal(touch.clientX - chart.over.getBoundingClientRect().left, "x")).sort((a, b) => a - b);
  chart.over.addEventListener("touchstart", (event) => (start = event.touches.length === 2 ? spread(event) : null), { passive: true });
  chart.over.addEventListener("touchmove", (event) => {
    if (!start || event.touches.length !== 2) return;
    event.preventDefault();
    const [low, high] = spread(event), { min, max } = chart.scales.x;
    const factor = Math.max(0.2, Math.min(5, (start[1] - start[0]) / Math.max(high - low, 1e-9))), middle = (start[0] + start[1]) / 2;
    for (const one of charts) one.setScale("x", { min: middle - (middle - min) * factor, max: middle + (max - middle) * factor });
  }, { passive: false });
}

// -- theme, keys, start --------------------------------------------------------------------------------------------------

const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("agent-r1-report-theme", theme);
  } catch { /* a browser that keeps nothing of files */ }
  drawCurves();
}

const toggleTheme = () => setTheme(isDark() ? "light" : "dark");

const KEYS = {
  j: () => move(1), k: () => move(-1), x: () => fold(!unfolded), t: toggleTheme, o: () => show("overview"),
  e: () => $("#episodes") && show("episodes"), "?": () => $("#help").showModal(),
  "/": () => ($("#episodes") && show("episodes"), $("#search")?.focus()),
  c: () => {
    if (!opened || !others(opened).length) return;
    const other = others(opened).find((one) => one.agent !== opened.agent) ?? others(opened)[0];
    state.beside = state.beside ? "" : sameAgent(other);
    open(opened, false);
  },
  m: () => {
    const ways = Object.keys(SHOWN_AS);
    state.show = ways[(ways.indexOf(state.show) + 1) % ways.length];
    if (opened) open(opened, false);
  },
};

function onKey(event) {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key === "Escape" && !event.target.closest("dialog")) {
    event.target.blur();
    closeReader();
  } else if (event.ctrlKey || event.metaKey || event.altKey) {
    return;
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && event.target.id === "list") {
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Enter" && event.target.id === "list") {
    $("#reader").focus();
  } else if (!typing && KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

/** Rows of the table link to their episodes. */
function linkTable() {
  const known = new Set(episodes.map((episode) => episode.agent)), ofTable = new Set(episodes.filter((episode) => episode.table).map((episode) => episode.agent));
  for (const cell of document.querySelectorAll("th[data-agent]")) {
    if (!known.has(cell.dataset.agent)) continue;
    const name = cell.textContent;
    const agent = cell.dataset.agent, table = hasTable && ofTable.has(agent) ? { step: "table" } : {};
    const address = new URLSearchParams({ view: "episodes", agent, ...table, ...(parts.length > 1 ? { part: cell.dataset.part } : {}) });
    cell.replaceChildren(make("a", { href: `#${address}` }, name));
  }
}

function followAddress() {
  readAddress();
  for (const name of ["part", "agent", "step", "kind", "sort"]) if ($(`#by-${name}`)) $(`#by-${name}`).value = state[name];
  if ($("#search")) $("#search").value = state.q;
  show(state.view);
  if (state.q && $("#search")) searchConversations();
  const part = state.of || state.part;
  const wanted = episodes.find((episode) => episode.key === state.key && (!part || episode.part === Number(part)));
  if (wanted) open(wanted);
  else if (state.view === "episodes" && shown.length && matchMedia("(min-width: 701px)").matches) open(shown[0]);
}

async function start() {
  try {
    const kept = localStorage.getItem("agent-r1-report-theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch { /* as above */ }
  const data = await unpack("data");
  parts = data.parts;
  takeEpisodes(data);
  readAddress();
  if ($("#episodes")) buildFilters();
  linkTable();
  followAddress();
  $("#theme").addEventListener("click", toggleTheme);
  $("#help-button").addEventListener("click", () => $("#help").showModal());
  $("#against").addEventListener("change", drawCurves);
  $("#more").addEventListener("toggle", drawCurves);
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", () => navigator.clipboard?.writeText(button.previousElementSibling.textContent).then(() => (button.textContent = "Copied")));
  }
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", followAddress);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCurves);
  let width = innerWidth;
  window.addEventListener("resize", () => innerWidth !== width && ((width = innerWidth), drawCurves()));
  document.documentElement.dataset.ready = "yes";
}

start();
