// The viewer: one canvas for all schedules, controlled by wheel, mouse, touch and keys; the address can hold its state.
let options = {}, paper = false, root = null, writing = 0, showing = 0, readState = null;

function startViewer(element, given = {}) {   // options: on, framed, fragment, grow (fraction of the window's height), onState
  options = { on: ["memory"], ...given }; root = element;
  options.on = [...options.on, "ends"];
  for (const name of options.on) on.add(name);
  root.classList.add("viewer");
  build(root);
  canvas = parts.canvas; context = canvas.getContext("2d");
  dress();
  listen();
  return { show, state: stateText, setState, png: () => canvas.toDataURL("image/png") };
}

async function show(every) {   // replaces the charts; the view does not move
  const mine = ++showing;
  let found;
  try { found = await Promise.all(every.map(unpacked)); }
  catch (error) { tell(`Nothing to show: ${error.message}`); return; }
  if (mine !== showing) return;   // a later call has replaced this one
  const all = view.t0 === 0 && view.t1 >= until, first = !charts.length, open = chosen && nameOf(chosen.chart, chosen.item);
  const number = chosen ? charts.indexOf(chosen.chart) : -1;
  charts = found; titled = charts.length > 1 || !!options.grow;
  until = Math.max(...charts.map((chart) => chart.makespan), 0) || 1;
  if (all || first) Object.assign(view, { t0: 0, t1: until });
  chosen = null; followed = [];
  canvas.setAttribute("aria-label", charts.map((chart) => `${chart.title}: ${seconds(chart.makespan)}, bubble ${percent(chart.bubble)}`).join("; "));
  refresh();
  fillTable();
  if (first) setState(readState ?? (options.fragment ? location.hash.slice(1) : ""));
  else if (open && charts[number]) chooseAgain(charts[number], open);
  requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.drawn = Math.round(performance.now()); }));
}

function chooseAgain(chart, name) {   // the action that was chosen before, if it still exists
  for (let box = 0; box < chart.boxes; box++) if (nameOf(chart, box) === name) { chosen = { chart, item: box }; followed = chart.chain(box); return; }
  tell("");
}

function dress() {   // reads the colours of the page's style, light or dark
  const style = getComputedStyle(root);
  for (const name of ["ground", "ink", "quiet", "line", "idle", "hatch", "lane", "critical", "forward", "backward", "fullest", "others", "warning", "outline"])
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  dressScale(style.getPropertyValue("--busy").split(",").map((colour) => colour.trim()));
  colours.lines = hatching(colours.hatch);
}

function hatching(colour) {   // slanted lines over idle time, at a resolution for paper
  const tile = make("canvas", { width: 32, height: 32 }), lines = tile.getContext("2d");
  lines.strokeStyle = colour; lines.lineWidth = 3;
  for (const shift of [-32, 0, 32]) { lines.moveTo(shift - 4, 36); lines.lineTo(shift + 36, -4); }
  lines.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(0.25));
  return pattern;
}

function fit() {   // sets the viewer's height inside a larger page: as its rows need, within limits
  if (options.grow) parts.pane.style.flex = `0 0 ${Math.round(Math.min(TOP + axis() + aroundRows() + devices() * 28, Math.max(innerHeight * options.grow, Math.min(TOP + axis() + aroundRows() + devices() * 13, innerHeight * 0.8))))}px`;
  canvas.style.height = `${parts.pane.clientHeight}px`;
  height = canvas.clientHeight; width = canvas.clientWidth;
}

function clamp() {
  arrange();
  if (view.t0 < 0 || view.t1 > until || view.t1 - view.t0 < until * 1e-8) see(...inView());
  if (view.row) view.row = Math.min(view.row, TALLEST) > fittingRow() * 1.001 ? Math.min(view.row, TALLEST) : 0;
  const more = Math.max(contentHeight() - pane(), 0);
  view.y = Math.min(Math.max(view.y, 0), more);
  parts.filler.style.height = `${more}px`;
  parts.pane.scrollTop = view.y;
  if (!asked) { asked = true; requestAnimationFrame(draw); }
  clearTimeout(writing);
  writing = setTimeout(writeState, 200);
}

function arrange() {   // sets whether fill and drain are enlarged, and shows the switch if they can be
  const found = charts.length ? phases() : null;
  borders = on.has("ends") ? found : null;
  [...parts.switches.children].find((one) => one.dataset.name === "ends").hidden = !found;
}

function zoomRows(factor, y) {   // the row at y does not move
  const found = places().find((one) => y < one.end) || places().at(-1);
  if (!found) return;
  const part = (y - found.rows) / (found.end - found.rows);
  view.row = Math.max(rowHeight() * factor, flattest());
  if (view.row <= fittingRow()) view.row = 0;
  view.row = Math.min(view.row, TALLEST);
  const now = places().find((one) => one.chart === found.chart);
  view.y += now.rows + part * (now.end - now.rows) - y;
  clamp();
}

function showWhole() { Object.assign(view, { t0: 0, t1: until, row: 0, y: 0 }); clamp(); }

function at(x, y) {   // the row of a chart, or its memory, at a point of the canvas
  const inside = x >= LEFT && x <= width - right();
  for (const one of places()) {
    if (y >= one.rows && y < one.end && y < TOP + pane()) {
      const device = Math.floor((y - one.rows) / rowHeight()), band = bandOf(one.chart, one, device);
      return { chart: one.chart, device, time: toTime(x), inside, inRow: (y - band.above) / band.whole };
    }
    if (one.memory && y >= one.memory && y < one.memory + memoryHeight() && inside) return { chart: one.chart, memory: true, time: toTime(x), inside, y: y - one.memory };
  }
  return null;
}

function lineAt(x, y) {   // the nearest transfer within some pixels
  let best = null, nearest = 5;
  for (const line of lines) {
    const [x1, y1, x2, y2] = line.ends, long = (x2 - x1) ** 2 + (y2 - y1) ** 2;
    const part = Math.min(Math.max(((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / (long || 1), 0), 1);
    const distance = Math.hypot(x - x1 - part * (x2 - x1), y - y1 - part * (y2 - y1));
    if (distance < nearest) { nearest = distance; best = line; }
  }
  return best;
}

function itemAt(x, y) {   // { chart, item } of the transfer, span or action at a point, or null
  const line = lineAt(x, y), found = at(x, y);
  if (line) return line;
  if (!found?.inside || found.memory) return null;
  const { chart, device, time, inRow } = found;
  for (const part of chart.lanes) {
    if (inRow < part.lane[0] || inRow > part.lane[1]) continue;
    const [from, to] = chart.spansOf(part, device);
    for (let item = from; item < to; item++) if (chart.start(item) <= time && time <= chart.end(item)) return { chart, item };
  }
  const item = chart.boxAt(device, time);
  return item === null ? null : { chart, item };
}

function wordsAt(x, y) {
  const hit = itemAt(x, y), found = at(x, y);
  if (hit) return linesOf(hit.chart, hit.item);
  if (!found) return null;
  const { chart, time } = found;
  if (found.memory) return time <= chart.makespan ? memoryLines(chart, nearestCurve(found), time) : null;
  if (!found.inside) return ledgerLines(chart, found.device);
  return time >= 0 && time <= chart.makespan ? idleLines(chart, found.device, time) : null;
}

function nearestCurve({ chart, time, y }) {
  const { most, capacity } = chart.memory, wanted = (memoryHeight() - 4 - y) / (memoryHeight() - 8) * (Math.max(most, capacity || 0) * 1.08 || 1);
  const apart = [...Array(chart.devices).keys()].map((device) => Math.abs(chart.level(device, time) - wanted));
  return apart.indexOf(Math.min(...apart));
}

function hover(event) {
  const area = canvas.getBoundingClientRect(), text = wordsAt(event.clientX - area.left, event.clientY - area.top), { tip } = parts;
  tip.style.display = text ? "block" : "none";
  if (!text) return;
  tip.textContent = text.join("\n");
  tip.style.left = `${Math.max(Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 6), 2)}px`;
  tip.style.top = `${event.clientY + 16 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 8 : event.clientY + 16}px`;
}

function listen() {
  canvas.addEventListener("wheel", wheel, { passive: false });
  point();
  canvas.addEventListener("pointerleave", () => { parts.tip.style.display = "none"; });
  canvas.addEventListener("dblclick", showWhole);
  canvas.addEventListener("keydown", press);
  parts.pane.addEventListener("scroll", () => { if (Math.abs(parts.pane.scrollTop - view.y) > 1) { view.y = parts.pane.scrollTop; clamp(); } });
  new ResizeObserver(() => { fit(); clamp(); }).observe(parts.pane);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { dress(); refresh(); });
  window.addEventListener("resize", () => { if (!paper) { fit(); clamp(); } });
  window.addEventListener("beforeprint", print);
  window.addEventListener("afterprint", () => { paper = false; document.documentElement.classList.remove("paper"); dress(); refresh(); });
  if (options.fragment) window.addEventListener("hashchange", () => setState(location.hash.slice(1)));
}

function wheel(event) {
  if (options.framed && document.activeElement !== canvas) return;   // the wheel scrolls the page around the frame
  event.preventDefault();
  const area = canvas.getBoundingClientRect(), sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
  const factor = Math.exp(Math.sign(event.deltaY || event.deltaX) * 0.22);
  if (event.shiftKey) zoomRows(1 / factor, event.clientY - area.top);
  else if (sideways) move(event.deltaX / innerWidth(), 0);
  else zoomTime(factor, toTime(event.clientX - area.left));
}

function move(part, pixels) {
  const [from, to] = inView(), step = part * (to - from);
  see(from + step, to + step);
  view.y += pixels;
  clamp();
}

function point() {   // one finger or the mouse drags, two fingers zoom, a tap or click chooses
  const down = new Map(), latest = new Map();   // first and latest event of each finger
  let held = null, moved = false;
  const hold = () => {
    for (const [id, event] of latest) down.set(id, event);
    const x = [...down.values()].map((one) => one.clientX), area = canvas.getBoundingClientRect();
    held = down.size ? { places: inView(), x: x.reduce((sum, one) => sum + one, 0) / x.length, y: view.y, top: [...down.values()][0].clientY,
      wide: Math.max(...x) - Math.min(...x), left: area.left } : null;
  };
  canvas.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, event);
    latest.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
    if (down.size === 1) moved = false;
    hold();
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => {
    const first = down.delete(event.pointerId);
    latest.delete(event.pointerId);
    if (first && !moved && name === "pointerup" && !down.size) tap(event);
    hold();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held || !down.has(event.pointerId)) return hover(event);
    const begun = down.get(event.pointerId);
    if (!moved && Math.hypot(event.clientX - begun.clientX, event.clientY - begun.clientY) < 4) return;
    moved = true;
    parts.tip.style.display = "none";
    latest.set(event.pointerId, event);
    const x = [...latest.values()].map((one) => one.clientX);
    const [from, to] = held.places;
    if (down.size > 1) {
      const factor = Math.max(held.wide, 10) / Math.max(Math.max(...x) - Math.min(...x), 10);
      const place = from + (held.x - held.left - LEFT) / innerWidth() * (to - from);
      see(place - (place - from) * factor, place + (to - place) * factor);
    } else {
      const step = (held.x - event.clientX) / innerWidth() * (to - from);
      see(from + step, to + step);
      view.y = held.y + held.top - event.clientY;
    }
    clamp();
  });
}

function tap(event) {
  const area = canvas.getBoundingClientRect(), hit = itemAt(event.clientX - area.left, event.clientY - area.top);
  if (hit) choose(hit.chart, hit.item); else choose(null);
  if (event.pointerType === "touch") hover(event);
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const name = SWITCHES.find(([, , key]) => key === event.key)?.[0];
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (arrows && chosen && !event.shiftKey) step(...arrows);
  else if (arrows) move(arrows[0] / 5, arrows[1] * pane() / 5);
  else if (event.key === "+" || event.key === "=") zoomTime(0.7, middle());
  else if (event.key === "-") zoomTime(1 / 0.7, middle());
  else if (event.key === "]") zoomRows(1.3, TOP + pane() / 2);
  else if (event.key === "[") zoomRows(1 / 1.3, TOP + pane() / 2);
  else if (event.key === "0" || event.key === "Home") showWhole();
  else if (event.key === "Enter" && charts.length) chosen ? choose(chosen.chart, chosen.item) : choose(charts[0], charts[0].firstEndingAfter(0, view.t0));
  else if (event.key === "Backspace" && chosen && followed.length > 1) choose(chosen.chart, followed.at(-2));
  else if (event.key === "Escape") choose(null);
  else if (event.key === "/") parts.search.focus();
  else if (name) { flip(on, name); refresh(); }
  else return;
  event.preventDefault();
}

function step(across, down) {   // choose the neighbour of the chosen action on its device, or on the device below or above
  const { chart, item } = chosen, device = chart.deviceOf(item), time = (chart.start(item) + chart.end(item)) / 2;
  if (!chart.isBox(item)) return;
  const [first, last] = chart.boxesOf(device);
  if (across) return choose(chart, Math.min(Math.max(item + across, first), last - 1));
  const rows = charts.flatMap((one) => [...Array(one.devices).keys()].map((row) => ({ chart: one, row })));
  const next = rows[rows.findIndex((one) => one.chart === chart && one.row === device) + down];
  if (!next) return;
  const [begin, end] = next.chart.boxesOf(next.row);
  choose(next.chart, Math.min(Math.max(next.chart.firstEndingAfter(next.row, time), begin), end - 1));
}

function print() {   // draw at a high resolution on white, as wide as the paper
  paper = true;
  document.documentElement.classList.add("paper");
  dress();
  fillLegend();
  const before = { row: view.row, y: view.y };
  Object.assign(view, { row: 0, y: 0 });
  width = 1040;
  height = TOP + axis() + aroundRows() + devices() * 28;
  height = Math.max(Math.min(height, 640), TOP + axis() + aroundRows() + devices() * flattest());
  canvas.width = width * 3; canvas.height = height * 3;
  context.setTransform(3, 0, 0, 3, 0, 0);
  draw();
  Object.assign(view, before);
}

// The state as text: t=FROM,TO in seconds, y=ROW,SCROLLED in pixels, on=..., off=..., at=CHART,ITEM
function stateText() {
  const state = new URLSearchParams();
  const number = (value) => String(Number(value.toPrecision(10)));
  if (view.t0 > 0 || view.t1 < until) state.set("t", [view.t0, view.t1].map(number).join(","));
  if (view.row || view.y) state.set("y", [view.row, view.y].map(Math.round).join(","));
  if ([...on].sort().join() !== [...options.on].sort().join()) state.set("on", [...on].join(","));
  if (hidden.size) state.set("off", [...hidden].join(","));
  if (chosen) state.set("at", [charts.indexOf(chosen.chart), chosen.item].join(","));
  return state.toString().replaceAll("%2C", ",");
}

function writeState() {
  if (!charts.length) return;
  const text = stateText();
  options.onState?.(text);
  if (options.fragment && text !== location.hash.slice(1)) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

function setState(text) {   // before the first charts: stored until then
  if (!charts.length) { readState = text; return; }
  readState = null;
  const wanted = new URLSearchParams(text), pair = (key) => (wanted.get(key) || "").split(",").map(Number);
  const [t0, t1] = pair("t"), [row, y] = pair("y"), [number, item] = wanted.has("at") ? pair("at") : [];
  Object.assign(view, t1 > t0 ? { t0, t1 } : { t0: 0, t1: until }, { row: row > 0 ? row : 0, y: y > 0 ? y : 0 });
  on.clear(); hidden.clear();
  for (const name of (wanted.get("on") ?? options.on.join()).split(",")) if (SWITCHES.some(([known]) => known === name)) on.add(name);
  for (const name of (wanted.get("off") ?? "").split(",")) if (name) hidden.add(name);
  refresh();
  if (item >= 0 && item < charts[number]?.column.cause.length) choose(charts[number], item); else choose(null);
}
