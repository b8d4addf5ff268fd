// The elements around the canvas: legend, switches, search, a text on the chosen action, and a table of devices.
const SWITCHES = [["transfers", "transfers", "t"], ["critical", "critical path", "c"], ["memory", "memory", "m"], ["ledger", "idle by cause", "i"],
  ["ends", "fill and drain enlarged", "e"]];
const HINT = "wheel: zoom in time · shift + wheel: taller rows · drag: move · click an action: what it waited for · " +
  "keys: arrows, + −, [ ], 0 shows all, Enter chooses, Backspace follows, / finds";
let parts = {};   // elements by name

function make(tag, properties = {}, ...children) {
  const { label, role, ...rest } = properties, element = Object.assign(document.createElement(tag), rest);
  if (label) element.setAttribute("aria-label", label);
  if (role) element.setAttribute("role", role);
  element.append(...children);
  return element;
}

function build(root) {
  const button = (text, label, onclick) => make("button", { type: "button", textContent: text, label, onclick });
  parts = {
    legend: make("div", { className: "legend", role: "group", label: "Legend; a kind's button hides it" }),
    switches: make("div", { className: "switches", role: "group", label: "Show" }),
    search: make("input", { type: "search", placeholder: "3F17", size: 8, spellcheck: false, label: "Find an action by name, such as 3F17" }),
    canvas: make("canvas", { tabIndex: 0, role: "application" }),
    tip: make("div", { className: "tip" }),
    selection: make("p", { className: "selection", role: "status" }),
    table: make("details", { className: "devices" }, make("summary", { textContent: "Devices as a table: idle time by cause, and memory" })),
    hint: make("p", { className: "hint", textContent: (options.framed ? "click, then " : "") + HINT }),
  };
  parts.tip.setAttribute("aria-hidden", "true");
  parts.canvas.setAttribute("aria-roledescription", "Gantt chart");
  const zoom = make("div", { className: "switches", role: "group", label: "Zoom" },
    button("−", "Zoom out in time", () => zoomTime(1 / 0.6, middle())),
    button("+", "Zoom in on time", () => zoomTime(0.6, middle())), button("show all", "", showWhole));
  parts.filler = make("div");
  parts.pane = make("div", { className: "pane" }, parts.canvas, parts.filler, parts.tip);
  root.replaceChildren(parts.legend, make("div", { className: "tools" }, parts.switches, make("label", {}, "find ", parts.search), zoom),
    parts.hint, parts.pane, parts.selection, parts.table);
  for (const [name, text, key] of SWITCHES) {
    const one = button(text, "", () => { flip(on, name); refresh(); });
    one.setAttribute("aria-keyshortcuts", key);
    one.title = `key ${key}`;
    one.dataset.name = name;
    parts.switches.append(one);
  }
  parts.search.addEventListener("input", () => find(0));
  parts.search.addEventListener("keydown", (event) => { if (event.key === "Enter") find(event.shiftKey ? -1 : 1); });
  parts.table.addEventListener("toggle", fillTable);
}

function flip(names, name) { if (!names.delete(name)) names.add(name); }

function refresh() {   // after a change of the visible parts
  for (const one of parts.switches.children) one.setAttribute("aria-pressed", String(on.has(one.dataset.name)));
  fillLegend();
  fit();
  clamp();
}

const slots = () => charts.flatMap((chart) => chart.kinds.filter((kind) => kind.slot)
  .map(({ title, parts: { F, B } }) => ({ title, parts: [F[0], B[0]] })));

let explained = "";   // the forms that the legend explains, as text
function explain() {   // update the legend if the picture has other forms
  const now = JSON.stringify(drawn);
  if (now !== explained) fillLegend();
  explained = now;
}

function fillLegend() {   // entries of kinds and lanes are buttons that hide them
  const ofBoxes = new Set(charts.flatMap((chart) => [...chart.kinds, ...chart.lanes].map((part) => part.title)));
  const entries = new Map(charts.flatMap((chart) => chart.legend.map(([colour, text]) => [text, [colour]])));
  if (entries.has("idle")) entries.set("idle", [`repeating-linear-gradient(135deg, ${colours.idle} 0 3px, ${colours.hatch} 3px 4px)`]);
  for (const { title, parts: [F, B] } of slots()) entries.set(title, [`linear-gradient(${F} 50%, ${B} 50%)`]);
  const paler = [...entries.keys()].filter((text) => text.startsWith("paler: "));
  if (paler.length > 1) {   // one swatch for all meanings
    const both = paler.map((text) => text.slice(7)).join(", or ");
    entries.set(`paler: ${both}`, entries.get(paler[0]));
    for (const text of paler) entries.delete(text);
  }
  if (drawn.scale) entries.set("busy, from none to all of the time", ["linear-gradient(90deg, var(--busy))", "", "wide"]);
  if (on.has("transfers")) entries.set("transfer of a forward", [colours.forward, "", "line"]).set("transfer of a backward", [colours.backward, "", "line"]);
  if (on.has("ledger")) for (const chart of charts) for (const [cause, about] of Object.entries(chart.causes)) entries.set(`idle: ${cause}`, about);
  parts.legend.replaceChildren(...[...entries].map(([text, [colour, meaning, shape]]) => {
    const swatch = make("i", { className: shape || "" }), isButton = ofBoxes.has(text), entry = make(isButton ? "button" : "span", {}, swatch, text);
    swatch.style.background = colour;
    if (meaning) entry.title = meaning;
    if (!isButton) return entry;
    entry.type = "button";
    entry.setAttribute("aria-pressed", String(!hidden.has(text)));
    entry.addEventListener("click", () => {
      flip(hidden, text);
      entry.setAttribute("aria-pressed", String(!hidden.has(text)));
      clamp();
    });
    return entry;
  }));
}

let place = 0;   // index into the results of the search
function find(step) {
  const text = parts.search.value.trim(), found = charts.flatMap((chart) => chart.found(text).map((item) => ({ chart, item })));
  if (!text) return;
  place = step ? (place + step + found.length) % (found.length || 1) : 0;
  if (found.length) choose(found[place].chart, found[place].item, `${place + 1} of ${found.length}: `);
  else tell(`no action is named ${text}; names are like 3F17: stage, kind, microbatch`);
}

function tell(text) { parts.selection.textContent = text; }

function choose(chart, item, before = "") {   // choose an item and follow its waits back to the start; null chooses nothing
  chosen = chart ? { chart, item } : null;
  followed = chart ? chart.chain(item) : [];
  tell(chart ? before + [...(titled ? [chart.title] : []), ...linesOf(chart, item), chainLine(chart, followed)].join(" · ") : "");
  if (chart) reveal(chart, item);
  clamp();
}

function reveal(chart, item) {   // move the view so that the item is visible
  const from = chart.start(item), to = chart.end(item), span = view.t1 - view.t0;
  if (to < view.t0 || from > view.t1 || (from < view.t0 && to <= view.t0 + span * 0.02)) {
    view.t0 = (from + to - span) / 2; view.t1 = view.t0 + span;
  }
  if (toX(to) - toX(from) < 3) {   // too narrow to see
    const wide = Math.max((to - from) * 60, until * 1e-7);
    view.t0 = (from + to - wide) / 2; view.t1 = view.t0 + wide;
  }
  const row = rowHeight(), top = places().find((one) => one.chart === chart).rows + chart.deviceOf(item) * row;
  if (top < TOP) view.y -= TOP - top;
  if (top + row > TOP + pane()) view.y += top + row - TOP - pane();
}

function fillTable() {
  if (!parts.table.open) return;
  for (const old of parts.table.querySelectorAll("table")) old.remove();
  for (const chart of charts) parts.table.append(tableOf(chart));
}

function tableOf(chart) {
  const causes = Object.keys(chart.ledger), cell = (text) => make("td", { textContent: text });
  const head = (text, scope, title = "") => make("th", { textContent: text, scope, title });
  const rows = [...Array(chart.devices).keys()].map((device) => make("tr", {}, head(`device ${device}`, "row"),
    cell(percent(chart.idleShare(device))), ...causes.map((cause) => cell(seconds(chart.ledger[cause][device]))),
    cell(amount(chart.memory.peaks[device], chart.memory.unit === "bytes" ? "bytes" : "").trim())));
  return make("table", {}, make("caption", { textContent: chart.title }), make("thead", {}, make("tr", {}, head("device", "col"), head("idle", "col"),
    ...causes.map((cause) => head(cause, "col", chart.causes[cause][1])), head(`peak memory (${chart.memory.unit})`, "col"))), make("tbody", {}, ...rows));
}
