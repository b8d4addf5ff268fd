// The live page: sizes, sliders of costs and up to four schedules; the address holds them.
const MOST = 4, COSTS = [["F", "Forward F (s)", 0.1, 4], ["I", "Input gradient I (s)", 0, 4], ["W", "Weight gradient W (s)", 0, 4], ["c", "Transfer (s)", 0, 2]];
const START = { schedules: ["1f1b", "zb-h1"], p: 4, m: 8, F: 1, I: 1, W: 1, c: 0, slot: null };
const find = (id) => document.getElementById(id), files = new Map(), lists = new Map();
let state = structuredClone(START), view = "", drawing = 0, writing = 0, stored = "", waiting = [];

function make(tag, properties = {}, ...children) {
  const { label, ...rest } = properties, element = Object.assign(document.createElement(tag), rest);
  if (label) element.setAttribute("aria-label", label);
  element.append(...children);
  return element;
}

// Data: one script per family or picture, loaded when it is first needed, so that the page also works from a folder.
function receive(name, content) { files.get(name).done(content); }

function load(name) {
  if (!files.has(name)) {
    const one = {};
    one.content = new Promise((done, fail) => Object.assign(one, { done, fail }));
    files.set(name, one);
    document.head.append(make("script", { src: `data/${name}.js`, onerror: () => { files.delete(name); one.fail(new Error(`data/${name}.js cannot be loaded`)); } }));
  }
  return files.get(name).content;
}

async function chartOf(name) {   // the chart of a family at the page's sizes and costs; an Error says which sizes it has
  const content = await load(name), at = `${state.p},${state.m}`;
  if (!content.charts && !lists.has(name)) lists.set(name, await listsOf(content));
  const found = content.charts || lists.get(name);
  if (!found[at]) throw new Error(`${name}: ${otherSizes(found)}. Rule of the schedule: ${content.constraints}.`);
  return content.charts ? found[at] : chartData(name, found[at], state);
}

function otherSizes(found) {   // the sizes that the page has instead, in words
  const sizes = Object.keys(found).map((one) => one.split(",").map(Number)), here = sizes.filter(([p]) => p === state.p);
  const any = (values) => [...new Set(values)].join(", ").replace(/, (\d+)$/, " or $1");
  return here.length ? `on ${state.p} devices this page has ${any(here.map(([, m]) => m))} microbatches` : `this page has it on ${any(sizes.map(([p]) => p))} devices`;
}

async function draw() {
  const mine = ++drawing, names = state.schedules.filter((name, at, all) => all.indexOf(name) === at);
  try {
    const found = stored ? (await load(stored)).charts : await Promise.allSettled(names.map(chartOf));
    if (mine !== drawing) return;
    const good = stored ? found : found.filter((one) => one.status === "fulfilled").map((one) => one.value);
    find("note").textContent = stored ? "" : found.filter((one) => one.status === "rejected").map((one) => one.reason.message).join("\n");
    find("viewer").style.visibility = good.length ? "" : "hidden";
    if (good.length) await viewer.show(good);
    find("about").textContent = stored ? "A picture of the documentation, as the engine simulated it" : "Simulated in this page, without a server: the engine's own additions, in its order";
    document.documentElement.dataset.settled = `${location.hash} ${mine}`;
  } catch (error) { find("note").textContent = error.message; }
}

// The address: #schedules=1f1b,zb-h1&p=4&m=8&F=1&I=1&W=1&c=0&slot=1.5&view=..., or #chart=NAME&view=...
function readLink() {
  const given = new URLSearchParams(location.hash.slice(1));
  state = structuredClone(START);
  stored = /^[\w-]+$/.test(given.get("chart") || "") ? `chart-${given.get("chart")}` : "";
  for (const key of ["p", "m"]) if (INDEX[key].includes(Number(given.get(key)))) state[key] = Number(given.get(key));
  for (const [key, , low, high] of COSTS) if (given.has(key) && Number(given.get(key)) >= low && Number(given.get(key)) <= high) state[key] = Number(given.get(key));
  if (Number(given.get("slot")) > 0 && Number(given.get("slot")) <= 12) state.slot = Number(given.get("slot"));
  const named = (given.get("schedules") || "").split(",").filter((name) => name in INDEX.families).slice(0, MOST);
  if (named.length) state.schedules = named;
  view = given.get("view") || "";
}

function writeLink() {
  clearTimeout(writing);
  writing = setTimeout(() => {
    const own = stored ? { chart: stored.slice(6) } : Object.fromEntries(Object.entries(state).filter(([, value]) => value !== null).map(([key, value]) => [key, String(value)]));
    history.replaceState(null, "", `#${new URLSearchParams({ ...own, ...(view ? { view } : {}) }).toString().replaceAll("%2C", ",")}`);
  }, 150);
}

function change(rebuild = false) { writeLink(); if (rebuild) showRail(); draw(); }

// The controls
function sizes(key, text) {
  const select = make("select", {}, ...INDEX[key].map((value) => make("option", { value, textContent: value, selected: value === state[key] })));
  select.addEventListener("change", () => { state[key] = Number(select.value); change(); });
  return make("label", {}, text, select);
}

function slider(key, text, min, max) {
  const input = make("input", { type: "range", min, max, step: 0.05, value: state[key], name: key }), shown = make("output", { textContent: state[key] });
  input.addEventListener("input", () => { state[key] = Number(input.value); shown.textContent = input.value; change(); });
  return make("label", {}, text, shown, input);
}

function slotSlider() {   // 0: no fused kernel
  const input = make("input", { type: "range", min: 0, max: 12, step: 0.05, value: state.slot ?? 0, name: "slot" }), shown = make("output", { textContent: state.slot ?? "off" });
  input.addEventListener("input", () => { state.slot = Number(input.value) || null; shown.textContent = state.slot ?? "off"; change(); });
  return make("label", {}, "Fused slot of F and B (s)", shown, input);
}

function card(name, at) {
  const select = make("select", { label: `Schedule ${at + 1}` }, ...Object.entries(INDEX.families).map(([key, { title }]) => make("option", { value: key, textContent: key, title, selected: key === name })));
  select.addEventListener("change", () => { state.schedules[at] = select.value; change(true); });
  const remove = make("button", { type: "button", textContent: "✕", label: `Remove schedule ${at + 1}`, disabled: state.schedules.length === 1 });
  remove.addEventListener("click", () => { state.schedules.splice(at, 1); change(true); });
  return make("div", { className: "card" }, select, remove);
}

function showRail() {
  const heading = (text) => make("h2", { textContent: text }), note = (text) => make("p", { textContent: text });
  if (stored) {
    const leave = make("button", { type: "button", textContent: "Schedules and costs of my own" });
    leave.addEventListener("click", () => { location.hash = ""; });
    find("rail").replaceChildren(heading("A stored timeline"), note("Sizes and costs are those of the picture; the page that shows it has the lines that make it."), leave);
    return;
  }
  const add = make("button", { type: "button", textContent: "Add a schedule", disabled: state.schedules.length >= MOST });
  add.addEventListener("click", () => { state.schedules.push(Object.keys(INDEX.families).find((name) => !state.schedules.includes(name))); change(true); });
  const fixed = state.schedules.filter((name) => INDEX.families[name].fixed), searched = state.schedules.filter((name) => INDEX.families[name].searched);
  find("rail").replaceChildren(heading("Sizes"), sizes("p", "Devices"), sizes("m", "Microbatches"), heading("Costs of a device share of the model"), ...COSTS.map((one) => slider(...one)), slotSlider(),
    note("One microbatch through 1/devices of the model. A stage costs its part of it, so that all schedules do the same work."), heading("Schedules"), ...state.schedules.map(card), add,
    ...(fixed.length ? [note(`${fixed.join(", ")}: stored as the engine simulated it, so the sliders do not move it; its costs are ${INDEX.fixed_costs}.`)] : []),
    ...(searched.length ? [note(`${searched.join(", ")}: the order was chosen for ${INDEX.search_costs}; the sliders change its times, not its order.`)] : []));
}

const viewer = startViewer(find("viewer"), { on: ["memory", "ledger"], onState: (text) => { if (text !== view) { view = text; writeLink(); } } });
function begin() { readLink(); viewer.setState(view); showRail(); draw(); }
window.addEventListener("hashchange", begin);
begin();
