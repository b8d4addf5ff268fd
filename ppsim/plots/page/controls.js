// The elements around the canvas: switches, search, legend, a text on the chosen action, keys, and a table of devices.
const SWITCHES = [["memory", "Memory", "m"], ["ledger", "Idle by cause", "i"], ["critical", "Critical path", "c"], ["transfers", "Transfers", "t"]];
const KEYS = {
  "See more or less": [["wheel, + −, pinch", "zoom in time; low rows grow too"], ["Shift and wheel, [ ]", "taller rows"], ["drag, Shift and arrows", "move"], ["double click", "single actions, or all"], ["0", "the whole step"], ["drag the axis, Shift and drag", "select a range"], ["r", "range: what is seen, or from the chosen action to the next r"], ["Escape", "let go"]],
  "One action": [["click, Enter", "choose it: what it waited for"], ["arrows", "the next one"], ["Backspace", "what it waited for"], ["/", "find it, such as 3F5"]],
  "Show": [["c, then ← →", "critical path, step by step"], ["t", "transfers"], ["m", "memory"], ["i", "idle by cause"], ["g", "grey, as in print"]],
  "Schedules and time": [["1 to 4", "go to a schedule"], ["b", "next base"], ["Space", "play the step in 10 s"], [", .", "the begin or end before, after"]],
};
let parts = {};   // elements by name

function make(tag, properties = {}, ...children) {
  const { label, role, ...rest } = properties, element = Object.assign(document.createElement(tag), rest);
  if (label) element.setAttribute("aria-label", label);
  if (role) element.setAttribute("role", role);
  element.append(...children);
  return element;
}

const button = (text, label, onclick) => make("button", { textContent: text, label, onclick });
function build(root) {
  parts = {
    legend: make("div", { className: "legend", role: "group", label: "Legend" }),
    switches: make("div", { className: "switches views", role: "group", label: "Show" }),
    search: make("input", { type: "search", placeholder: "find 3F5", size: 9, spellcheck: false, label: "Find an action by name, such as 3F5" }),
    canvas: make("canvas", { tabIndex: 0, role: "application" }),
    tip: make("div", { className: "tip" }), time: make("div", { className: "time" }),
    selection: make("p", { className: "selection", role: "status" }),
    range: make("section", { className: "range", label: "Selected range", hidden: true }),
    table: make("details", { className: "devices" }, make("summary", { textContent: "Devices" }), make("div")),
    totals: make("details", { className: "totals" }, make("summary"), make("div")),
    keys: make("dialog", { className: "keys", label: "Keys" }),
  };
  parts.tip.setAttribute("aria-hidden", "true");
  parts.canvas.setAttribute("aria-roledescription", "Gantt chart");
  const zooms = make("div", { className: "switches", role: "group", label: "Zoom" }, button("−", "Zoom out in time", () => zoom(1 / 0.6, ...focus())),
    button("Fit", "Fit the whole step", showWhole), button("+", "Zoom in on time", () => zoom(0.6, ...focus()))), stepped = (by) => (on.has("critical") ? stepPath : stepTime)(by);
  parts.finger = make("div", { className: "switches finger", role: "group", label: "Steps" }, button("‹", "The step before", () => stepped(-1)), button("▷", "Play, or stop", play), button("›", "The next step", () => stepped(1)));   // what keys do elsewhere
  const steps = options.steps ? [extra.build()] : [];
  parts.keys.append(make("header", {}, make("b", { textContent: "Keys and mouse" }), button("Close", "", () => parts.keys.close())),
    ...Object.entries({ ...KEYS, ...options.keys }).map(([title, lines]) => make("table", {}, make("caption", { textContent: title }), ...lines.map(([key, text]) => make("tr", {}, make("th", { textContent: key, scope: "row" }), make("td", { textContent: text }))))));
  parts.filler = make("div");
  parts.pane = make("div", { className: "pane" }, parts.canvas, parts.filler, parts.time, parts.tip);
  parts.tools = make("div", { className: "tools" }, parts.switches, parts.search, zooms, button("?", "Keys", () => parts.keys.showModal()));
  parts.status = make("div", { className: "status" }, parts.finger, parts.legend, parts.totals, parts.selection);
  const head = document.getElementById("head");   // of a page of its own
  root.replaceChildren(...(head ? [] : [parts.tools]), ...steps, parts.pane, parts.status, parts.range, parts.table, parts.keys);
  head?.append(parts.tools);
  for (const [name, text, key] of SWITCHES) {
    const one = Object.assign(button(text, "", () => turn(name)), { title: `key ${key}` });
    one.setAttribute("aria-keyshortcuts", key);
    one.dataset.name = name;
    parts.switches.append(one);
  }
  parts.switches.append(Object.assign(button("Play", "", play), { className: "touch" }));   // what Space does elsewhere
  parts.search.addEventListener("input", () => { entered = 0; find(0); });
  parts.search.addEventListener("keydown", (event) => { if (event.key === "Enter") find(entered++ && (event.shiftKey ? -1 : 1)); if (event.key === "Escape") canvas.focus(); });
  parts.search.addEventListener("blur", rest);
  parts.table.addEventListener("toggle", fillTable);
  parts.hold = ({ currentTarget: { parentElement: own } }) => { own.addEventListener("toggle", () => { const { top, bottom } = own.getBoundingClientRect(), tall = window.innerHeight; if (own.open) window.scrollBy(0, Math.ceil(Math.max(Math.min(bottom - tall, top - 0.4 * tall), 0))); }, { once: true }); if (![...document.querySelectorAll("details")].some((one) => one.open && one !== own)) parts.pane.style.minHeight = own.open ? "" : `${Math.min(parts.pane.offsetHeight, CAPS + AXIS + contentHeight())}px`; };   // opening takes nothing from the rows, and scrolls to what is opened, but a part of the chart stays in sight
}

function turn(name) {   // shows a part, or hides it; without the path the view is as before its steps
  if (!on.delete(name)) on.add(name);
  if (name === "critical") { tell(""); if (step >= 0) goBack(); step = -1; hovered = null; }
  refresh();
}

function goBack() { if (viewBefore) { Object.assign(view, viewBefore); viewBefore = null; clamp(); } }

function refresh() {   // after a change of the visible parts
  for (const one of parts.switches.querySelectorAll("[data-name]")) one.setAttribute("aria-pressed", String(on.has(one.dataset.name)));
  parts.finger.hidden = !on.has("critical");
  fillLegend();
  fit();
  clamp();
}

function put(place, ...children) { const one = make("div", {}, ...children); if (one.innerHTML !== place.innerHTML) place.replaceChildren(...one.childNodes); }   // where they differ from what is there
const isMarked = (chart) => boxWidth(chart) > RULES.mark - 1 && boxTall(chart) >= 9, hasLengths = (chart) => chart.locals < 5 || boxWidth(chart) >= 12;   // shows marks of stages and directions; of several stages, with different lengths
function swatch(colour, className = "") { const one = make("i", { className }); one.style.background = colour; return one; }
const fillOf = (kind) => (kind.slot ? `linear-gradient(${theme.kinds.F} 50%, ${theme.kinds.B} 50%)` : theme.kinds[kind.name]);
const ORDER = Object.keys(THEMES.light.kinds);
const inOrder = (kinds) => [...kinds].sort((one, other) => ORDER.indexOf(one.name) - ORDER.indexOf(other.name));
const idlePart = (chart, cause) => sumOf(chart.ledger[cause] || []) / (chart.devices * chart.makespan);   // of all devices' time
function fillTotals() {   // the colours of causes; below, the idle time of all devices and the meanings
  const real = charts.filter(isReal), several = real.length > 1;
  const causes = CAUSES.filter((cause) => real.some((chart) => idlePart(chart, cause) >= 5e-4)), cells = (tag, texts) => texts.map((textContent) => make(tag, { textContent }));
  const size = (chart, cause) => (chart.waiting || chart.faulty ? "—" : (100 * idlePart(chart, cause)).toFixed(1)), sizes = (cause) => (several ? cause : `${cause} ${size(real[0], cause)}`);   // several: in the table
  parts.totals.hidden = real.length > 0 && (!causes.length || (phone() ? charts.length > 1 : !on.has("ledger")));   // on phones, which have no bars, the numbers of one schedule; rows do not move when the first picture comes
  put(parts.totals.firstChild, `idle by cause${several ? "" : ", % of all devices' time"}:`, ...causes.map((cause) => make("span", {}, swatch(theme.causes[cause]), sizes(cause))));
  put(parts.totals.lastChild, make("table", {}, make("thead", {}, make("tr", {}, ...cells("th", ["cause", ...real.map(({ short }) => `${several ? short : "all devices"} (%)`), "meaning"]))),
    make("tbody", {}, ...causes.map((cause) => make("tr", {}, make("th", { scope: "row" }, swatch(theme.causes[cause]), cause), ...cells("td", [...real.map((chart) => size(chart, cause)), real.find((chart) => chart.causes[cause])?.causes[cause] || ""]))))));
}

function fillLegend() {   // only what is drawn
  parts.status.style.visibility = charts.some(isReal) ? "" : "hidden";
  const kinds = new Map(charts.flatMap((chart) => chart.kinds.map((kind) => [kind.title, kind]))), lanes = new Map(charts.flatMap((chart) => chart.lanes.map((part) => [part.title, part])));
  const locals = Math.max(...charts.map((chart) => chart.locals), 1), first = charts[0]?.kinds[0]?.name || "F", entries = [];
  const entry = (text, colour = null, className = "") => make("span", {}, ...(colour ? [swatch(colour, className)] : []), text);
  const add = (is_drawn, ...what) => { if (is_drawn) entries.push(entry(...what)); };
  for (const kind of inOrder(kinds.values())) add(true, kind.title, fillOf(kind));
  add(charts.some((chart) => !isReal(chart) || Object.keys(chart.ledger).length), "idle", theme.idle);
  add(charts.some(isMixed), "narrow actions mix their colours");
  add(charts.some((chart) => chart.slices > 1 && !isMixed(chart) && numbersOf(chart).least < Infinity), "numbers: microbatch.slice");
  add(charts.some((chart) => chart.locals > 1 && isMarked(chart)), locals === 2 ? "second stage" : `later stage${charts.some(hasLengths) ? ": longer line" : ""}`, theme.kinds[first], "under");
  add(charts.some((chart) => chart.column.reverse && isMarked(chart)), "other direction", theme.kinds[first], "over");
  parts.legend.style.setProperty("--mark", inkOn(theme.kinds[first]));
  add(charts.some((chart) => chart.begins.size), "begin of a step", theme.text, "tall");
  const low = charts.filter(isLow), hides = (part) => part.banded && low.length === charts.length;
  for (const part of lanes.values()) add(!hides(part), part.title, theme.lanes[part.sort], part.banded ? "lane" : "");
  const names = [...[...lanes.values()].filter(hides).map(({ sort }) => sort), ...(low.some((chart) => chart.kinds.some(({ slot }) => slot)) ? ["halves of slots"] : [])], sends = charts.filter(({ transfers }) => transfers), lined = sends.filter(hasLines), unlined = sends.filter((chart) => !hasLines(chart));
  add(names.length, `rows too low for ${names.join(", ")}: ${phone() ? "pinch" : "Shift and wheel"}`);
  add(on.has("transfers") && lined.length, `transfer${onlyWaited() ? " that a device waits for" : ""}; of a backward: dashed`, theme.edge, "line hair");
  add(on.has("transfers") && unlined.length, `boxes${lined.length ? ` of ${unlined.map(({ short }) => short).join(", ")}` : ""} too small for transfers: ${phone() ? "pinch" : "double click"}`);
  add(on.has("critical") || (followed.length > 1 && !phone()), on.has("critical") ? "critical path" : "what the chosen action waited for", theme.critical, "line");
  const strips = places().filter((place) => place.memory).map(({ chart }) => chart), in_bytes = strips.every(({ memory }) => memory.unit === "bytes"), levels = `linear-gradient(${theme.memory} 2px, ${theme.memory}1f 2px)`;
  add(phone() && strips.length, `${in_bytes ? "memory" : "activations"}, fullest device`, levels);   // elsewhere named beside the strip
  for (const text of new Set(strips.filter(({ memory }) => memory.capacity).map(limitText))) add(true, text, `repeating-linear-gradient(90deg, ${theme.limit} 0 5px, transparent 5px 8px)`, "line");
  fillTotals();
  const slow = [...new Set(charts.flatMap(({ slow }) => Object.values(slow || {})))];
  if (slow.length) entries.push(make("span", { className: "slow", title: slow.join("\n") }, slow.length === 1 && charts.length === 1 ? `▸ ${slow[0]}` : "▸ slowest device"));
  put(parts.legend, ...entries, ...(extra.legend?.() || []));
  parts.status.classList.toggle("full", [parts.legend, parts.totals].some((one) => !one.open && one.offsetTop + one.offsetHeight > 26));   // has no space for a hint
}

function rest() { if (chosen) choose(chosen.chart, chosen.item, "", false); else tell(""); }
let place = 0, entered = 0;   // index of the hit; how often Enter was pressed, which first takes the one in sight
function find(step) {
  const text = parts.search.value.trim(), found = charts.flatMap((chart) => chart.found(text).map((item) => ({ chart, item })));
  if (!text) return rest();
  place = step ? (place + step + found.length) % (found.length || 1) : 0;
  const { chart, item } = found[place] ?? {}; if (chart) { grow(chart); choose(chart, item, `${place + 1} of ${found.length}${entered && found.length > 1 ? " (Enter: next)" : ""}: `, NUMBERED); }
  else { goBack(); choose(null); tell(`no action is named ${text}; names are like 3F5: stage, kind, microbatch`); }
}

const unbroken = (words) => words.replace(/(\d) (?=([mµn]?s|%)(?!\w))/g, "$1\u00a0");   // a number keeps its unit
function tell(text, lines = [text], goes = [...lines.keys()].slice(1).reverse()) {   // a text, or lines, of which those that have no room are only spoken, in the order of `goes`
  const own = parts.selection;
  own.title = lines.join(" · ");
  own.replaceChildren(...lines.filter(Boolean).map((line, at) => make("span", { textContent: `${at ? " · " : ""}${phone() ? unbroken(line) : line}` })));
  for (const at of lines.length > 1 ? goes : []) if (own.scrollWidth > own.clientWidth || own.scrollHeight > own.clientHeight) [...own.children].at(at).className = "spoken";
}

const NUMBERED = 12;   // pixels of a box that has a number
function choose(chart, item, before = "", reveals = 3) {   // choose an item and follow its waits back to the start; null chooses nothing
  chosen = chart ? { chart, item } : null;
  if (chart) reach(chart.end(item));
  step = -1;
  followed = chart ? chart.chain(item) : [];
  tell("", chart ? [`${before}${charts.length > 1 ? `${chart.short} · ` : ""}${linesOf(chart, item)[0]}`, ...linesOf(chart, item).slice(1), chainLine(chart, followed)] : [], [1, -1, 2]);
  if (chart && reveals) reveal(chart, item, reveals);
  clamp();
}

function grow(chart) { if (isLow(chart)) { viewBefore ||= { ...view }; view.row = NUMBERED + 2; } }   // legible rows
function reveal(chart, item, least) {   // move the view so that the item is visible, and as wide as `least`
  const from = chart.start(item), to = chart.end(item), span = view.t1 - view.t0;
  viewBefore ||= { ...view };
  if (to < view.t0 || from > view.t1 || (from < view.t0 && to <= view.t0 + span * 0.02)) {
    view.t0 = (from + to - span) / 2; view.t1 = view.t0 + span;
  }
  if (toX(to) - toX(from) < least) {   // then it has the space for its number
    const wide = Math.max((to - from) * innerWidth() / 25, until * 1e-7);
    view.t0 = (from + to - wide) / 2; view.t1 = view.t0 + wide;
  }
  const { rows, end, first, row, hidden } = places().find((one) => one.chart === chart), top = chart.deviceOf(item) * row;
  if (hidden && (first + top < rows || first + top + row > end)) view.top = Math.round((top + (row - end + rows) / 2) / row) * row / hidden;
  if (rows < CAPS) view.y -= CAPS + HEAD - rows;
  if (end > CAPS + pane()) view.y += end - CAPS - pane();
}

function fillTable() {
  if (!parts.table.open) return;
  const real = charts.filter(isReal), bounds = real.length === 1 ? Object.entries(real[0].bounds || {}).sort((one, other) => other[1] - one[1]) : [];
  const unit = unitFor(Math.max(...real.map(({ makespan }) => makespan)));
  parts.table.firstChild.textContent = `Devices${charts.length > 1 ? "" : `, times in ${unit[1]}`}`;
  put(parts.table.lastChild, make("div", { className: "tables", tabIndex: 0, role: "group", label: "Devices" }, ...real.map((chart) => tableOf(chart, ...unit))), ...(bounds.length ? [make("p", { textContent: `Lower bounds: ${bounds.map(([name, seconds]) => `${name} ${seconds1(seconds)}`).join(" · ")}` })] : []));
  fit(); clamp();
}

function tableOf(chart, factor, symbol) {   // by device: busy seconds by kind, idle seconds by cause, peak, end of the last action
  const places = chart.makespan * factor < 20 ? 2 : 1, head = (text, scope, colour) => make("th", { scope }, ...(colour ? [swatch(colour)] : []), text);
  const causes = CAUSES.filter((cause) => Math.max(...(chart.ledger[cause] || [0])) * factor >= 0.5 * 10 ** -places), kinds = inOrder(chart.kinds), fills = chart.lanes.filter(({ sort }) => sort === "fills");
  const time = (value = 0) => fixed(value * factor, places);
  const rows = upTo(chart.devices).map((device) => {
    const shares = sharesAt(chart, device, 0, chart.makespan), [first, end] = chart.boxesOf(device);
    const cells = [...[...kinds, ...fills].map(({ title }) => time(shares.get(title))), time(shares.get("idle")), ...causes.map((cause) => time(chart.ledger[cause]?.[device])), levelOf(chart, chart.memory.peaks[device]), end > first ? time(chart.end(end - 1)) : ""];
    return make("tr", {}, head(chart.towers?.[device] ?? device, "row"), ...cells.map((textContent) => make("td", { textContent })));
  });
  const heads = [head("device", "col"), ...kinds.map((kind) => head(kind.slot ? "F + B" : kind.letter, "col", fillOf(kind))), ...fills.map(({ title, sort }) => head(title, "col", theme.lanes[sort])), head("idle", "col"), ...causes.map((cause) => head(cause, "col", theme.causes[cause])), head(`peak, ${scaleOf(chart)[1]}`, "col"), head("last action", "col")];
  return make("table", {}, charts.length > 1 ? make("caption", { textContent: `${chart.short}, times in ${symbol}` }) : "", make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}
