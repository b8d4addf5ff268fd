// The page's state, one object that the address holds; each of its schedules is one request to the server.
const START = { common: { devices: 4, microbatches: 8, forward: 1, input_grad: 1, weight_grad: 1, latency: 0, transport: "async" }, schedules: [{ schedule: "1f1b" }, { schedule: "zb-h1" }], view: "" };
const COSTS = ["forward", "input_grad", "weight_grad", "latency", "overlap"], SIZES = ["devices", "microbatches", "stages_per_device"];
const MOST = 4, LONGEST_LINK = 30000, LONG = 400;   // schedules; characters; milliseconds after which work is shown, and a newer request cancels an older one
const token = new URLSearchParams(location.search).get("token");
const find = (id) => document.getElementById(id);
let notice = "";   // a fault of none of the page's schedules; the next change removes it
let state = structuredClone(START), offer = null, runs = [], writing = 0, written = "", gone = false;   // runs: { result, good, flight } per schedule; good: the last result with a chart, and its state

const { make, signed, unitFor } = startViewer;
const button = (text, onclick, properties = {}) => make("button", { type: "button", textContent: text, onclick, ...properties });
const plain = (text, onclick, properties = {}) => button(text, onclick, { className: "plain", ...properties });

const ask = (path, body, signal) => fetch(path, {
  method: body ? "POST" : "GET", signal, body: body && JSON.stringify(body),
  headers: { "content-type": "application/json", ...(token ? { "x-ppsim-token": token } : {}) },
});

const all = () => state.schedules.map((_, index) => index);
const nameOf = (index) => state.schedules[index].name || state.schedules[index].schedule || "schedule";
const isLive = (index) => runs[index]?.good && !runs[index].result.faults;
function baseOf() {   // the chosen one, or the first with numbers
  const chosen = Math.min(Number(new URLSearchParams(state.view).get("base")) || 0, state.schedules.length - 1);
  return isLive(chosen) ? chosen : all().find(isLive) ?? chosen;
}

function caseOf(index) {   // the body of a request; the library chooses the values of empty fields
  const { name, ...own } = state.schedules[index], merged = { ...state.common, ...own };
  if (merged.csv !== undefined) for (const key of ["schedule", "options", ...SIZES]) delete merged[key];
  merged.by_device = (merged.by_device || []).filter((row) => Object.values(row).some((value) => value !== ""));
  if (!merged.by_device.length) delete merged.by_device;
  return Object.fromEntries(Object.entries(merged).filter(([, value]) => value !== "" && value !== null && value !== undefined));
}

function readLink() {
  written = location.hash;
  if (location.hash.length < 2) return;
  try {
    const found = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    if (!Array.isArray(found.schedules) || !found.schedules.length || typeof found.common !== "object") throw new Error("no state");
    state = { common: found.common || {}, schedules: found.schedules.slice(0, MOST).map((one) => ({ ...one })), view: String(found.view || "") };
    notice = "";
    halve(state.common);
  } catch { notice = "The address holds no state of the explorer after its #; it starts anew."; }
}

function halve(common) {   // a backward that is a number becomes its two parts, which the table of costs has
  const { backward, input_grad, weight_grad } = common;
  if (typeof backward !== "number" || input_grad !== undefined || weight_grad !== undefined) return;
  delete common.backward;
  Object.assign(common, { input_grad: backward / 2, weight_grad: backward / 2 });
}

function writeLink() {   // delayed: browsers reject an address that changes at each step of a drag
  clearTimeout(writing);
  writing = setTimeout(() => {
    if (location.hash !== written) return;   // a new address, which is read next
    const text = "#" + encodeURIComponent(JSON.stringify(state));
    if (text.length > LONGEST_LINK) { notice = "The dropped file is too large to be part of the address."; return showNotes(); }
    history.replaceState(null, "", location.pathname + location.search + text);
    written = location.hash;
  }, 150);
}

function change(indexes = all()) {
  notice = "";
  writeLink();
  asking?.abort();
  stopSearches(indexes);
  for (const index of indexes) request(runs[index]);
}

function request(run) {   // one at a time: the newest waits, and cancels an older one that takes long
  if (!run.flight) send(run);
  else {
    run.flight.stale = true;
    if (performance.now() - run.flight.begun > LONG) run.flight.controller.abort();
  }
}

async function send(run) {
  const flight = run.flight = { controller: new AbortController(), begun: performance.now(), stale: false };
  const index = runs.indexOf(run), used = structuredClone({ common: state.common, schedule: state.schedules[index] });
  watch();
  try {
    const response = await ask("/api/simulate", caseOf(index), flight.controller.signal);
    run.result = await response.json();
    if (run.result.chart) run.good = { ...run.result, ...used };
    if (response.status >= 500) run.result.again = true;   // not the case's fault
    gone = false;
  } catch (error) {
    if (error.name !== "AbortError") gone = true;
    else if (!flight.stale) run.result = { faults: ["cancelled"] };
  }
  run.result ||= { faults: [] };
  run.flight = null;
  if (!runs.includes(run)) return;
  if (flight.stale) return send(run);
  await showRuns();
  watch();
}

let ticking = 0;
const waited = (run) => (run.flight ? performance.now() - run.flight.begun : 0);
function watch() {   // show work that takes longer
  clearTimeout(ticking);
  const busy = runs.filter((run) => run.flight);
  showWork();
  if (busy.length) ticking = setTimeout(watch, Math.max(...busy.map(waited)) < LONG ? LONG + 5 : 500); else askFaster();
}
