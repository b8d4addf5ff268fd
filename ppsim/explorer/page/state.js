// The page's state, one object that the address holds; each of its schedules is one request to the server.
const START = { common: { devices: 4, microbatches: 8, forward: 1, input_grad: 1, weight_grad: 1, latency: 0, transport: "async" }, schedules: [{ schedule: "1f1b" }, { schedule: "zb-h1" }], view: "" };
const COSTS = ["forward", "backward", "input_grad", "weight_grad", "overlap", "latency"], SIZES = ["devices", "microbatches", "stages_per_device"];
const MOST = 4, LONGEST_LINK = 30000, LONG = 400;   // schedules; characters; milliseconds after which a newer request cancels an older one
const token = new URLSearchParams(location.search).get("token");
const find = (id) => document.getElementById(id);
let notice = "";   // a fault of none of the page's schedules; the next change removes it
let state = structuredClone(START), offer = null, runs = [], writing = 0, written = "";   // runs: { result, flight } per schedule

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const ask = (path, body, signal) => fetch(path, {
  method: body ? "POST" : "GET", signal, body: body && JSON.stringify(body),
  headers: { "content-type": "application/json", ...(token ? { "x-ppsim-token": token } : {}) },
});

const all = () => state.schedules.map((_, index) => index);
const nameOf = (index) => state.schedules[index].name || state.schedules[index].schedule || "schedule";

function caseOf(index) {   // the body of a request; the library chooses the values of empty fields
  const { name, ...own } = state.schedules[index], merged = { ...state.common, ...own };
  if (merged.csv !== undefined) for (const key of ["schedule", "options", ...SIZES]) delete merged[key];
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
  } catch { notice = "The address holds no state of the explorer after its #; it starts anew."; }
}

function writeLink() {   // delayed: browsers reject an address that changes at each step of a slider
  clearTimeout(writing);
  writing = setTimeout(() => {
    const text = "#" + encodeURIComponent(JSON.stringify(state));
    if (text.length > LONGEST_LINK) { find("status").textContent = "The dropped file is too large to be part of the address."; return; }
    written = text;
    history.replaceState(null, "", location.pathname + location.search + text);
  }, 150);
}

function change(indexes) {
  notice = "";
  writeLink();
  for (const index of indexes) request(runs[index]);
}

function request(run) {   // one at a time: the newest waits, and cancels an older one that takes long
  run.changed = performance.now();
  if (!run.flight) send(run);
  else {
    run.flight.stale = true;
    if (performance.now() - run.flight.begun > LONG) run.flight.controller.abort();
  }
}

async function send(run) {
  const flight = run.flight = { controller: new AbortController(), begun: performance.now(), stale: false }, changed = run.changed;
  watch();
  try {
    const response = await ask("/api/simulate", caseOf(runs.indexOf(run)), flight.controller.signal);
    run.result = await response.json();
  } catch (error) {
    if (error.name !== "AbortError") run.result = { faults: ["The server does not answer; is `ppsim explore` still running?"] };
    else if (!flight.stale) run.result = { faults: ["cancelled"] };
  }
  run.flight = null;
  if (!runs.includes(run)) return;
  if (flight.stale) return send(run);
  await showRuns();
  run.took = Math.round(performance.now() - changed);
  watch();
}

let ticking = 0;
function watch() {   // show the progress of work that takes more than a second
  clearTimeout(ticking);
  const busy = runs.filter((run) => run.flight), since = Math.min(...busy.map((run) => run.flight.begun)), waited = performance.now() - since;
  const long = busy.length > 0 && waited >= 1000;
  find("progress").hidden = find("cancel").hidden = !long;
  find("viewer").classList.toggle("waiting", long);
  if (long) find("status").textContent = `simulating ${busy.map((run) => nameOf(runs.indexOf(run))).join(", ")} … ${Math.floor(waited / 1000)} s`;
  else if (!busy.length) {
    const actions = runs.reduce((sum, run) => sum + (run.result?.actions || 0), 0), took = Math.max(...runs.map((run) => run.took || 0));
    find("status").textContent = actions ? `${actions.toLocaleString("en")} actions, simulated and drawn in ${took} ms` : "";
    document.documentElement.dataset.idle = String(Number(document.documentElement.dataset.idle || 0) + 1);
  }
  if (busy.length) ticking = setTimeout(watch, 1000 - waited % 1000 + 5);
}

function cancelAll() { for (const run of runs) run.flight?.controller.abort(); }
