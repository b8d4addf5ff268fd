// The page's state, which the address holds; each of its schedules is one request to the server.
const START = { common: { devices: 4, microbatches: 8, forward: 1, input_grad: 1, weight_grad: 1, latency: 0, transport: "async" }, schedules: [{ schedule: "1f1b" }, { schedule: "zb-h1" }], view: "" };
const COSTS = ["forward", "input_grad", "weight_grad", "latency", "overlap"], SIZES = ["devices", "microbatches", "stages_per_device"];
const MOST = 4, LONGEST_LINK = 30000, LONG = 400;   // schedules; characters; milliseconds after which work is shown, a newer request cancels an older one, and what is typed counts
const token = new URLSearchParams(location.search).get("token");
const find = (id) => document.getElementById(id);
let notice = "", undoes = false;   // a fault of none of the page's schedules, or what Undo brings back; the next change removes it
let state = structuredClone(START), offer = null, runs = [], writing = 0, written = "", gone = false;   // runs: { result, good, next, flight } per schedule; good: the last result that is drawn, and its state; next: one that waits for the other schedules

const { make, signed, unitFor, inUnit } = startViewer;
const button = (text, onclick, properties = {}) => make("button", { textContent: text, onclick, ...properties });
const plain = (text, onclick, properties = {}) => button(text, onclick, { className: "plain", ...properties });

const ask = (path, body, signal) => fetch(path, {
  method: body ? "POST" : "GET", signal, body: body && JSON.stringify(body),
  headers: { "content-type": "application/json", ...(token ? { "x-ppsim-token": token } : {}) },
});

const sentences = ({ faults }) => faults.map(({ text }) => text).join("\n");
const all = () => state.schedules.map((_, index) => index);
const nameOf = (index) => state.schedules[index].name || state.schedules[index].schedule || "schedule";
const isLive = (index) => runs[index]?.good && !runs[index].result.faults;
function baseOf() {   // the chosen one, or the first with numbers
  const chosen = Math.min(Number(new URLSearchParams(state.view).get("base")) || 0, state.schedules.length - 1), { faults, stopped } = runs[chosen]?.result ?? {};
  return !faults || stopped ? chosen : all().find(isLive) ?? chosen;
}

const rowsOf = ({ by_device = [] }) => [by_device.filter((row) => Object.values(row).some((value) => value !== ""))].find((rows) => rows.length);   // in which something is typed, if any
function caseOf(index) {   // the body of a request; the library chooses the values of empty fields
  const { name, ...own } = state.schedules[index], merged = { ...state.common, ...own };
  if (merged.csv !== undefined) for (const key of ["schedule", "options", ...SIZES]) delete merged[key];
  merged.by_device = rowsOf(merged);
  return Object.fromEntries(Object.entries(merged).filter(([, value]) => value !== "" && value !== null && value !== undefined));
}

// The address: #p=4&m=8&s=1f1b,interleaved-1f1b:4, what else differs from the first visit, then the viewer's own keys.
const LINK = { p: "devices", m: "microbatches", F: "forward", I: "input_grad", W: "weight_grad", transfer: "latency", slot: "overlap", limit: "memory_limit", transport: "transport", config: "config" };

const usualOf = (config, { schedule: { devices, microbatches } = {}, costs } = offer.configs[config] ?? {}) => (config ? { devices, microbatches, ...costs } : START.common);   // what an address leaves out
function linkText(view = state.view) {
  const { common, schedules } = state, words = new URLSearchParams(), more = Object.fromEntries(Object.entries({ ...common, by_device: (common.by_device || []).filter((row) => COSTS.some((key) => ![undefined, ""].includes(row[key]))) }).filter(([, value]) => typeof value !== "object" || Object.keys(value).length));   // a row that only names devices changes nothing
  for (const [name, key] of Object.entries(LINK)) {
    if (typeof (common[key] ?? "") === "object") continue;
    delete more[key];
    if (["p", "m"].includes(name) || common[key] !== usualOf(common.config)[key]) words.set(name, common[key] ?? "");
  }
  const named = schedules.map((one) => (Object.keys(one).every((key) => ["schedule", "stages_per_device"].includes(key) || !Object.keys(one[key] || {}).length) && one.schedule ? `${one.schedule}${one.stages_per_device ? `:${one.stages_per_device}` : ""}` : null));
  if (named.includes(null)) more.schedules = schedules; else words.set("s", named.join());
  if (Object.keys(more).length) words.set("more", JSON.stringify(more));
  return [words.toString().replaceAll("%2C", ",").replaceAll("%3A", ":"), view].filter(Boolean).join("&");
}

const KNOWN = [...Object.values(LINK), "by_device", "changes", "backward", "stages_per_device"], OWN = [...KNOWN, "schedule", "name", "csv", "options"];   // keys of all schedules, and of one
const unread = (one, known) => Object.keys(one).filter((key) => !known.includes(key)).map((key) => { const pair = [key, one[key]]; delete one[key]; return pair; });
const NUMBERS = /^[\d.,e+-]+$/;
const VIEW = { t: NUMBERS, y: NUMBERS, range: NUMBERS, at: NUMBERS, base: NUMBERS, on: /^[a-z,]*$/, theme: /^(light|dark|grey)$/ };   // the viewer's keys
function readLink() {
  const wrong = [];   // keys and values that nothing reads
  written = location.hash;
  if (location.hash.length < 2) { state = structuredClone(START); return; }
  try {
    if (location.hash[1] === "%" || location.hash[1] === "{") {   // as links were
      const found = JSON.parse(decodeURIComponent(location.hash.slice(1)));
      if (!Array.isArray(found.schedules) || !found.schedules.length || typeof found.common !== "object") throw new Error("no state");
      state = { common: found.common || {}, schedules: found.schedules, view: String(found.view || "") };
    } else {
      const words = new URLSearchParams(location.hash.slice(1)), { schedules, ...more } = JSON.parse(words.get("more") || "{}"), common = { ...usualOf(words.get("config")), ...more };
      if (![...words.keys()].some((name) => name in LINK || name in VIEW || ["s", "more"].includes(name))) throw new Error("no state");
      for (const [name, key] of Object.entries(LINK)) if (words.has(name)) { if (words.get(name) === "") delete common[key]; else common[key] = valueOf(words.get(name)); }
      const listed = !words.get("s") ? ownOf(words.get("config")) ?? START.schedules : words.get("s").split(",").map((text) => { const [schedule, stages] = text.split(":"), is_count = /^[1-9]\d*$/.test(stages ?? 1); if (!is_count) wrong.push(["s", text]); return { schedule, ...(stages && is_count ? { stages_per_device: Number(stages) } : {}) }; });
      for (const name of [...Object.keys(LINK), "s", "more"]) words.delete(name);
      for (const pair of [...words].filter(([name, text]) => !VIEW[name]?.test(text))) { wrong.push(pair); words.delete(pair[0]); }
      state = { common, schedules: schedules || listed, view: words.toString().replaceAll("%2C", ",") };
    }
    for (const one of [state.common, ...state.schedules]) for (const key in one) if (one[key] === null) delete one[key];
    wrong.push(...unread(state.common, KNOWN), ...state.schedules.flatMap((one) => unread(one, OWN)));
    if (!all().some(isKnown)) state.schedules.push(...START.schedules);   // beside what to do about the others
    notice = [...(state.schedules.length > MOST ? [`The address lists ${state.schedules.length} schedules; ${MOST} at most are shown.`] : []), ...(wrong.length ? [`Not used from the address: ${wrong.map((pair) => pair.join("=")).join(", ")}.`] : [])].join(" ");
    state.schedules = state.schedules.slice(0, MOST).map((one) => ({ ...one }));
    tabled(state.common);
  } catch { notice = "The address holds no state of the explorer after its #; it starts anew."; }
}

function tabled(common) {   // costs as the table has them: a backward in two parts; a list by device as rows of devices with equal costs; returns whether there are such rows
  const { devices, backward, by_device = [] } = common, lists = CELLS.map(([key]) => [key, String(common[key] ?? "").replace(/[[\]]/g, "").split(",").map(valueOf)]).filter(([, list]) => list.length > 1 && list.length === devices), spans = {};
  if (typeof backward === "number" && common.input_grad === undefined && common.weight_grad === undefined) { delete common.backward; Object.assign(common, { input_grad: backward / 2, weight_grad: backward / 2 }); }
  for (let device = 1; device < devices && lists.length; device++) {
    const own = lists.filter(([, list]) => list[device] !== list[0]).map(([key, list]) => [key, list[device]]), ends = (spans[JSON.stringify(own)] ||= []);
    if (ends.at(-1)?.[1] === device - 1) ends.at(-1)[1] = device; else ends.push([device, device]);
  }
  for (const [key, list] of lists) common[key] = list[0];
  if (lists.length) common.by_device = [...Object.entries(spans).filter(([own]) => own !== "[]").map(([own, ends]) => ({ devices: ends.map((pair) => [...new Set(pair)].join("-")).join(", "), ...Object.fromEntries(JSON.parse(own)) })), ...by_device];
  return lists.length > 0;
}

const pictured = new Set();   // states, as addresses without their view, of which some schedule has a picture: steps to go back to
let ticking = 0, steps = 0, settled = "";   // the timer of work that is shown; the last step that can be done again; the state of the address
const isStep = () => pictured.has(settled) && linkText("") !== settled;   // a change that Undo takes back
function writeLink() {   // delayed: browsers reject an address that changes at each step of a drag
  clearTimeout(writing);
  writing = setTimeout(putLink, 150);
  showSteps();
}

function putLink() {   // what is set, unlike what is seen, is a step to go back to
  clearTimeout(writing);
  if (location.hash !== written) return;   // a new address, which is read next
  const text = "#" + linkText(), now = linkText(""), { at = 0, before } = history.state || {}, is_new = isStep(), next = is_new ? { at: at + 1, before: settled } : { at, before };
  if (!pictured.has(settled) && now === before) { history.back(); return; }
  if (text.length > LONGEST_LINK) { notice = "The dropped file is too large to be part of the address."; return showNotes(); }
  history[is_new ? "pushState" : "replaceState"](next, "", location.pathname + location.search + text);
  if (is_new) steps = next.at;
  written = location.hash; settled = now;
  showSteps();
}

function showSteps() {   // whether there is something to undo, or to do again
  const at = history.state?.at || 0;
  find("undo").disabled = at === 0 && !isStep(); find("redo").disabled = at >= steps;
}

function change(indexes = all()) {
  notice = ""; undoes = false;
  writeLink();
  asking?.abort();
  stopSearches();
  showInherited();
  for (const index of indexes) request(runs[index]);
}

function request(run) {   // one at a time: the newest waits, and cancels an older one that takes long
  if (!run.flight) send(run);
  else {
    run.flight.stale = true;
    if (performance.now() - run.flight.begun > LONG) run.flight.controller.abort();
  }
}

async function send(run, since = performance.now()) {   // since: of the first change that has no answer yet
  clearTimeout(run.retry);
  const flight = run.flight = { controller: new AbortController(), begun: performance.now(), since, stale: false };
  const index = runs.indexOf(run), used = structuredClone({ common: state.common, schedule: state.schedules[index], key: keyOf(state.common) });
  run.next = null;
  watch();
  try {
    const response = await ask("/api/simulate", caseOf(index), flight.controller.signal), result = await response.json();
    run.next = { ...result, ...used, again: response.status >= 500 };   // not the case's fault
    gone = false;
  } catch (error) {
    if (error.name !== "AbortError") {   // it may come back
      gone = true;
      run.retry = setTimeout(() => { if (!run.flight && runs.includes(run)) send(run); }, PATIENCE);
    }
  }
  run.flight = null;
  if (!runs.includes(run)) return;
  if (flight.stale) return send(run, since);
  takeResults();
  if (!run.next) { run.result ||= { faults: [] }; await showRuns(); }
  watch();
}

const isOut = (run) => !!run?.result?.faults && !run.result.stopped;   // its picture, if any, is of another problem
function takeResults() {   // the results that are there, as soon as all pictures and faults are of one problem
  if (runs.some((run) => run.flight && run.result) || new Set(runs.map((run) => (run.next ?? (isOut(run) ? null : run.good))?.key).filter(Boolean)).size > 1) return;
  for (const run of runs) if (run.next) { run.result = run.next; if (run.next.chart) run.good = run.next; run.next = null; }
}

function cancel() {   // the whole change: what is there already is not drawn
  for (const run of runs.filter(({ flight, next }) => flight || next)) {
    Object.assign(run, { next: null, result: { faults: [{ text: "stopped", keys: [], use: [] }], stopped: true } });
    Object.assign(run.flight || {}, { stale: false }).controller?.abort();
  }
  showRuns();
}

const waited = (run) => (run.flight ? performance.now() - run.flight.since : 0);
const isWaiting = (run) => !!(run.flight || run.next) && runs.some((one) => waited(one) >= LONG);   // all at once
function watch() {   // show work that takes longer
  clearTimeout(ticking);
  const busy = runs.filter((run) => run.flight);
  if (shown) viewer.mark(marks()); else showRuns();
  showFaults();
  showNotes();
  if (busy.length) ticking = setTimeout(watch, Math.max(LONG + 5 - Math.max(...busy.map(waited)), 0) || 500); else askFaster();
}
