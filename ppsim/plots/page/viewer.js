// The viewer: one canvas for all schedules, controlled by wheel, mouse, touch and keys; the address can hold its state.
let options = {}, root = null, latest = null, writing = 0, showing = 0, readState = null;

function startViewer(element, given = {}) {   // options: on, theme, framed, fragment, arrange (moves the parts), onState, onDraw
  options = { on: ["memory", "ledger"], own: given.theme, ...given }; root = element;
  for (const name of options.on) on.add(name);
  base = options.base || 0;
  root.classList.add("viewer");
  build(root);
  const about = document.querySelector("body > details.words");
  if (about) { parts.table.before(about); about.open = window.innerWidth > 760; } else options.arrange?.(parts);   // directly below the legend
  canvas = parts.canvas; context = canvas.getContext("2d");
  dress();
  if (options.fragment) for (const one of document.querySelectorAll("details > summary")) one.addEventListener("click", parts.hold);
  if (options.steps) extra.dress();
  listen();
  return { show, mark, press, setState, heightOf: (devices) => CAPS + AXIS + HEAD + BELOW + 60 * devices + 170, setBase: (number) => { base = number; clamp(); }, select: (from, to) => select(from * finish(), to * finish()) };
}

function mark(marks) {   // per chart: short (its name), dimmed (opacity), waiting or faulty (dashes in place of its numbers), noted (pixels of a note below them)
  charts.forEach((chart, number) => Object.assign(chart, { dimmed: 0, waiting: false, faulty: false, noted: 0 }, marks[number]));
  if (!chosen && charts.every(({ waiting, faulty }) => waiting || faulty)) tell("");   // it was about the last picture
  clamp();
}

async function show(every, marks = []) {   // replaces the charts; the view does not move
  const mine = ++showing, { dataset } = document.documentElement;   // its `drawn` tells tests when the picture is complete
  delete dataset.drawn;
  extra.keep?.(every);
  const found = await Promise.all(every.map(async (data) => leftIdle(await unpacked(data))));
  if (mine !== showing) return;   // a later call has replaced this one
  const all = view.t0 === 0 && view.t1 >= until, first = !charts.some(isReal), real = found.some(isReal), open = chosen && nameOf(chosen.chart, chosen.item);
  const number = chosen ? charts.indexOf(chosen.chart) : -1, before = charts, is_new = found.some((chart, at) => chart !== charts[at]);
  charts = found; base = Math.min(base, Math.max(charts.length - 1, 0));
  mark(marks);
  const strength = (chart) => isReal(chart) && (chart.dimmed || 1), most = Math.max(...charts.map(strength));
  until = shownSeconds(charts.filter((chart) => strength(chart) === most).map((chart) => chart.makespan));   // paler pictures are of another problem: they are cut
  if (all || first) Object.assign(view, { t0: 0, t1: until });
  chosen = hovered = null; followed = [];
  canvas.setAttribute("aria-label", charts.filter(isReal).map((chart) => `${chart.title}: ${seconds1(chart.makespan)}, idle ${percent(chart.idle)}${fitOf(chart) && `, memory ${fitOf(chart)}`}`).join("; "));
  refresh();   // measures the window, which phone() asks for
  parts.table.open ||= first && real && !options.framed && !phone() && charts.length === 1 && charts[0].devices <= 16;
  if (latest) hover(latest);
  fillTable();
  if (first && document.documentElement.scrollHeight > window.innerHeight + 1) parts.table.open = false;   // the window has no space for it
  if (first && real && !options.onState) parts.totals.open = pane() - contentHeight() > 145;   // the meanings of causes have space
  fillRange();
  if (first && real) setState(readState ?? (options.fragment ? location.hash.slice(1) : ""));
  else if (open && charts[number]) { const item = named(charts[number]).get(open); choose(item === undefined ? null : charts[number], item, "", false); }   // if it still exists
  else if (is_new) tell("", range || !options.onState || !parts.legend.offsetHeight ? [] : charts.flatMap(({ short, step: now }, at) => { const { step: was, short: name } = before[at] ?? {}; return was && now && was !== now && name === short ? [`${short}: ${seconds1(was)} → ${seconds1(now)}, ${signed(now / was - 1)}`] : []; }));   // what a change did
  if (real) requestAnimationFrame(() => requestAnimationFrame(() => { if (mine === showing) dataset.drawn = Math.round(performance.now()); }));
}

function shownSeconds(lengths) {   // without outliers, by the rule of still charts
  const upper = lengths.sort((one, other) => one - other).slice((lengths.length - 1) >> 1), last = upper.at(-1), gaps = upper.map((one, at) => upper[at + 1] / one || 0), gap = Math.max(...gaps);
  return (last > 3 * upper[0] && gap > 2 ? upper[gaps.indexOf(gap)] * 1.05 : last * 1.004) || 1;
}

function dress() {   // the theme that was asked for, else light or dark as the reader's system; on paper light or grey
  const wanted = options.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  theme = THEMES[themeName = paper && wanted === "dark" ? "light" : wanted];
  const { style } = document.documentElement;
  style.colorScheme = themeName === "dark" ? "dark" : "light";
  for (const name of ["paper", "idle", "text", "quiet", "grid", "edge", "panel", "limit", "longer"]) style.setProperty(`--${name}`, theme[name]);
}

function recolour() { dress(); refresh(); fillTable(); fillRange(); }

function fit() {   // the canvas is as large as its pane
  root.style.setProperty("--need", `${needed()}px`);
  canvas.style.height = `${parts.pane.clientHeight}px`;
  height = canvas.clientHeight; width = canvas.clientWidth;
}

function at(x, y) {   // the row of a chart, or its memory, at a point of the canvas
  const inside = x >= left() && x <= width - right();
  if (y > CAPS + pane() || y < CAPS) return null;
  for (const one of places()) if (isReal(one.chart)) {
    if (y >= one.rows && y < one.end) {
      const device = Math.min(Math.floor((y - one.first) / one.row), one.chart.devices - 1), band = bandOf(one.chart, one, device);
      return { chart: one.chart, place: one, device, time: toTime(x), inside, inRow: (y - band.begin) / (band.whole || 1) };
    }
    if (one.memory && y >= one.memory && y < one.memory + one.tall) return { chart: one.chart, memory: true, time: toTime(x), inside, y: y - one.memory, tall: one.tall };
  }
  return null;
}

const isAxis = (y) => y >= axisTop() - (phone() ? 12 : 6);

function lineAt(x, y) {   // the nearest transfer within some pixels
  let best = null, nearest = 5;
  for (const line of lines) {
    const [x1, y1, x2, y2] = line.ends, long = (x2 - x1) ** 2 + (y2 - y1) ** 2;
    const part = between(((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / (long || 1), 0, 1);
    const distance = Math.hypot(x - x1 - part * (x2 - x1), y - y1 - part * (y2 - y1));
    if (distance < nearest) { nearest = distance; best = line; }
  }
  return best;
}

function itemAt(x, y) {   // { chart, item } of the transfer, span or action at a point, or null
  const line = lineAt(x, y), found = at(x, y);
  if (!found?.inside || found.memory || isMixed(found.chart)) return line;
  const { chart, device, time, inRow } = found, inside = ([top, bottom]) => inRow >= top && inRow <= bottom;
  const lanes = chart.lanes.filter((part) => (part.banded ? !isLow(chart) : true) && inside(part.lane)), item = chart.boxAt(device, time);
  for (const part of lanes) {
    const [from, to] = chart.spansOf(part, device);
    for (let one = from; one < to; one++) if (chart.start(one) <= time && time <= chart.end(one)) return { chart, item: one };
  }
  if (line && (item === null || !inside(chart.band))) return line;   // lines pass behind actions
  return item === null ? null : { chart, item };
}

function wordsAt(x, y) {
  const hit = itemAt(x, y), found = at(x, y);
  if (y < CAPS) return captionAt(x);
  const own = places().find(({ title }) => y >= title && y < title + HEAD)?.chart;
  if (own && x > columns()[0] - 62 && !phone() && !captionAt(x)?.[0].startsWith("idle")) return captionAt(x);
  if (own) return isReal(own) && !own.waiting && !own.faulty ? totalLines(own) : null;
  if (hit) return linesOf(hit.chart, hit.item);
  const ended = Math.abs(y - axisTop() + 3) < 7 && places().filter((one) => endsInSight(one) && Math.abs(x - toX(one.chart.makespan)) < 6);
  if (ended?.length) return ended.map(({ chart }) => `${chart.short}: ends at ${onAxis(chart.makespan)}`);
  if (!found) return null;
  const { chart, time } = found;
  if (found.memory && found.inside) return time <= chart.makespan ? memoryLines(chart, nearestCurve(found), time) : null;
  if (found.memory) return [`area: ${deviceName(chart, levelsOf(chart)[0])}, the fullest`, "thin: the others"].slice(0, levelsOf(chart).length);
  if (!found.inside) return ledgerLines(chart, found.device);
  if (time < 0 || time > chart.makespan) return null;
  if (isMixed(chart)) return mixedLines(found.place, x, y);
  return idleLines(chart, found.device, time);
}

function nearestCurve({ chart, time, y, tall }) {
  const wanted = (tall - y) / tall * topLevel() * 1.12;
  return levelsOf(chart).sort((one, other) => Math.abs(chart.level(one, time) - wanted) - Math.abs(chart.level(other, time) - wanted))[0];   // of those drawn
}

const isSame = (one, other) => one?.item === other?.item && one?.chart === other?.chart;
function hover(event) {
  latest = event;
  const area = canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top, text = wordsAt(x, y), { tip } = parts;
  const hit = itemAt(x, y), before = hovered;
  canvas.style.cursor = isAxis(y) && y < axisTop() + AXIS ? "col-resize" : "";   // there a drag selects
  hovered = hit && !hit.ends ? { chart: hit.chart, item: hit.item } : null;
  if (!isSame(before, hovered)) redraw();
  hideTip();
  showTime(area, x, y);
  if (!text || (chosen && isSame(chosen, hovered) && !parts.selection.querySelector(".spoken"))) return;   // what is chosen has its words below the chart
  tip.style.display = "block";
  tip.textContent = unbroken(text.join("\n"));
  const right = event.clientX + 14, over = right + tip.offsetWidth > document.documentElement.clientWidth - 6;   // then at the left of the pointer, if it fits there
  tip.style.left = `${over ? Math.max(event.clientX - tip.offsetWidth - 14, 2) : right}px`;
  const high = tip.offsetHeight, below = event.clientY + 16, above = event.clientY - high - 8, found = at(x, y);
  tip.style.top = `${found?.memory || below + high > window.innerHeight || (below + high > area.top + found?.place.bottom && above > area.top + found.place.rows) ? above : below}px`;   // over no numbers or buttons of a schedule
}

function hideTip() { parts.tip.style.display = parts.time.style.display = "none"; pointTo(null); }
function pointTo(time) { if (time !== pointed) { pointed = time; if (keyed) redraw(); else within(0, axisTop(), width, height, drawAxis); } }   // the axis has no numbers below the time at the pointer

function showTime(area, x, y) {   // a line at the pointer's time through all schedules, and the time on the axis
  if (x < left() || x > rightEdge() || y < CAPS || y > axisTop() + AXIS || !charts.some(isReal)) return;
  const time = isAxis(y) ? snapped(x) : toTime(x), bands = places().map(({ rows, bottom }) => `#0000 0 ${rows - CAPS - 2}px, ${theme.text}80 0 ${bottom - CAPS - 2}px`);   // not over the numbers
  pointTo(time);
  parts.time.style = `display: block; left: ${area.left + toX(time)}px; top: ${area.top + CAPS}px; height: ${axisTop() - CAPS}px; background: linear-gradient(${bands}, #0000 0)`;
}

function listen() {
  document.addEventListener("pointerdown", ({ target }) => { if (target !== canvas) { latest = null; hideTip(); } });
  document.addEventListener("keydown", () => { hideTip(); if (step < 0 && hovered) { hovered = null; redraw(); } });   // what keys do is said in the line below
  canvas.addEventListener("wheel", wheel, { passive: false });
  point();
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "touch") return; latest = null; hideTip(); if (hovered) { hovered = null; redraw(); } });
  for (const [name, is_key] of [["keydown", true], ["pointerdown", false]]) document.addEventListener(name, () => { if (keyed !== is_key) { keyed = is_key; redraw(); } });
  for (const name of ["focus", "blur"]) canvas.addEventListener(name, redraw);
  canvas.addEventListener("dblclick", ({ offsetX, offsetY }) => {   // from small boxes to legible ones, from there to all
    const { chart } = placeAt(offsetY);
    if (!isMixed(chart) && !isLow(chart)) showWhole(); else { zoom(Math.min(boxWidth(chart) / LEGIBLE, 1), toTime(offsetX), offsetY); if (isLow(chart)) zoomRows(12 / rowHeight(chart), offsetY); }
  });
  (options.fragment ? document : canvas).addEventListener("keydown", press);   // a page of its own has the keys wherever nothing is typed
  parts.pane.addEventListener("scroll", () => { if (Math.abs(parts.pane.scrollTop - view.y) > 1) { view.y = parts.pane.scrollTop; clamp(); } });
  const resized = () => { if (!paper) { fit(); clamp(); if (latest) hover(latest); } };
  new ResizeObserver(() => { if (parts.pane.clientHeight !== height || parts.pane.clientWidth !== width) resized(); }).observe(parts.pane);   // not for parts of a pixel
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  window.addEventListener("resize", resized);
  window.addEventListener("beforeprint", print);
  window.addEventListener("afterprint", () => { paper = false; if (parts.closes) parts.table.open = false; recolour(); });
  if (options.fragment) window.addEventListener("hashchange", () => setState(location.hash.slice(1)));
}

function wheel(event) {
  if (options.framed && document.activeElement !== canvas) return;   // the wheel scrolls the page around the frame
  event.preventDefault();
  const by = (event.deltaY || event.deltaX) * (event.deltaMode ? 0.07 : event.ctrlKey ? 0.02 : 0.0022), factor = Math.exp(between(by, -0.22, 0.22));   // a notch of a wheel; touch pads send many small steps, and pinches with Ctrl
  if (event.shiftKey) zoomRows(1 / factor, event.offsetY);
  else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / innerWidth(), 0);
  else if (event.offsetX < left()) move(0, event.deltaY);   // over the names: the other schedules
  else zoom(factor, toTime(event.offsetX), event.offsetY);
  if (latest) hover(event);   // the same place shows another time
}

function point() {   // one finger or the mouse drags, two fingers zoom, a tap or click chooses
  const fingers = new Map();   // the latest event of each
  let begun = null, moved = false, selecting = false;
  const spread = () => { const x = [...fingers.values()].map(({ clientX }) => clientX); return { x: sumOf(x) / x.length, wide: Math.max(...x) - Math.min(...x) }; };
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
    if (fingers.size === 1) { begun = event; moved = false; selecting = event.shiftKey || isAxis(event.offsetY); }
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => {
    const is_last = fingers.delete(event.pointerId) && !fingers.size;
    if (is_last && !moved && name === "pointerup") tap(event);
    if (moved && selecting && range) select(...range);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId), area = canvas.getBoundingClientRect();
    if (!before) return event.buttons ? null : hover(event);   // not while a number beside the chart is dragged
    if (!moved && Math.hypot(event.clientX - begun.clientX, event.clientY - begun.clientY) < 4) return;
    moved = true; hovered = null;
    hideTip();
    const from = spread(), now = fingers.set(event.pointerId, event) && spread();
    if (fingers.size > 1) {
      zoom(Math.max(from.wide, 10) / Math.max(now.wide, 10), toTime(from.x - area.left), event.clientY - area.top);
      move((from.x - now.x) / innerWidth(), 0);
    } else if (selecting) select(...[begun, event].map(({ clientX }) => snapped(between(clientX - area.left, left(), rightEdge()))).sort((one, other) => one - other), true);
    else move((from.x - now.x) / innerWidth(), before.clientY - event.clientY);
  });
}

function snapped(x) {   // the time at x, or of a tick or an end of a schedule a few pixels from it, so that a range can be exact
  return [...ticksOf().ticks, ...charts.map(({ makespan }) => makespan)].find((time) => Math.abs(toX(time) - x) < 4) ?? toTime(x);
}

function tap(event) {
  const { offsetX: x, offsetY: y } = event, hit = itemAt(x, y);
  choose(hit?.chart, hit?.item, "", false);
  hideTip();
  if (event.pointerType !== "touch") return;   // a finger would cover the tip, and the tip the chart
  const words = wordsAt(x, y), name = charts.length > 1 && at(x, y)?.chart.short;
  if (!hit) { tell("", words ? [name, ...words].filter(Boolean) : []); showTime(canvas.getBoundingClientRect(), x, y); }
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, dialog")) return;
  if (options.fragment && event.target.closest("button, details") && (event.key.length > 1 || event.key === " ")) return;
  const name = SWITCHES.find(([, , key]) => key === event.key)?.[0];
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (arrows && !event.shiftKey && on.has("critical") && arrows[0]) stepPath(arrows[0]);
  else if (arrows && !event.shiftKey && chosen) stepTo(...arrows);
  else if (arrows && !event.shiftKey && document.activeElement === canvas && charts.some(isReal)) chooseFirst();
  else if (arrows) move(arrows[0] / 5, arrows[1] * pane() / 5);
  else if ("+=-".includes(event.key)) zoom(event.key === "-" ? 1 / 0.7 : 0.7, ...focus());
  else if ("[]".includes(event.key)) zoomRows(event.key === "[" ? 1 / 1.3 : 1.3, focus()[1]);
  else if (event.key === "0" || event.key === "Home") showWhole();
  else if (event.key === "Enter" && charts.length) chosen ? choose(chosen.chart, chosen.item) : chooseFirst();
  else if (event.key === "Backspace" && chosen && followed.length > 1) choose(chosen.chart, followed.at(-2));
  else if (event.key === "Escape") { playing = null; select(0, 0); choose(null); goBack(); }
  else if (event.key === "r" && charts.some(isReal)) selectKeyed();
  else if (event.key === "/") parts.search.focus();
  else if (event.key === "?") parts.keys.showModal();
  else if (event.key === "g") { options.theme = themeName !== "grey" ? "grey" : options.own === "grey" ? null : options.own; recolour(); }
  else if (event.key === "b" && charts.length > 1) { base = (base + 1) % charts.length; clamp(); }
  else if (event.key === " ") play();
  else if ((event.key === "," || event.key === ".") && charts.length) stepTime(event.key === "." ? 1 : -1);
  else if (/^[1-9]$/.test(event.key) && charts[event.key - 1]) choose(charts[event.key - 1], charts[event.key - 1].firstEndingAfter(0, view.t0));
  else if ((event.key === "<" || event.key === ">") && options.steps) extra.step(event.key === ">" ? 1 : -1);
  else if (name) turn(name);
  else return;
  event.preventDefault();
}

function chooseFirst() { const chart = charts.find(isReal); choose(chart, chart.firstEndingAfter(0, view.t0)); }

const reach = (time) => { if (playing?.time < time) playing = null; };   // play leaves pale what is after its line
function stepPath(by) {   // the next or the previous action of the critical path: of the schedule that the first step was upon, else below the pointer, else of the base
  const chart = step >= 0 && hovered ? hovered.chart : chosen?.chart ?? (latest && at(latest.offsetX, latest.offsetY)?.chart) ?? charts[base], chain = (chart.critical ??= chart.chain(chart.last)), places = chain.map((item, at) => [item, at]).filter(([item]) => chart.isBox(item));
  const known = places.findIndex(([item, at]) => (chosen ? item === chosen.item : at === step)), first = places.findIndex(([item]) => chart.end(item) > view.t0);   // of those in sight
  const next = between(known >= 0 ? known + by : first, 0, places.length - 1), [item, place] = places[next];
  step = place;
  chosen = null; followed = []; hovered = { chart, item };
  reach(chart.end(item)); grow(chart); reveal(chart, item, NUMBERED);
  tell(stepLine(chart, chain, place, next + 1, places.length));
  clamp();
}

function stepTo(across, down) {   // choose the neighbour of the chosen action on its device, or on the device below or above
  const { chart, item } = chosen, device = chart.deviceOf(item), time = (chart.start(item) + chart.end(item)) / 2;
  if (!chart.isBox(item)) return;
  const [first, last] = chart.boxesOf(device);
  if (across) return choose(chart, between(item + across, first, last - 1));
  const rows = charts.flatMap((one) => upTo(one.devices).map((row) => ({ chart: one, row })));
  const next = rows[rows.findIndex((one) => one.chart === chart && one.row === device) + down];
  if (!next) return;
  const [begin, end] = next.chart.boxesOf(next.row);
  choose(next.chart, between(next.chart.firstEndingAfter(next.row, time), begin, end - 1));
}

const PLAY = 10;   // seconds that the whole step takes
const tellTime = () => tell(`at ${onAxis(playing.time)}, busy: ${charts.map((chart) => `${charts.length > 1 ? `${chart.short} ` : ""}${upTo(chart.devices).filter((device) => chart.boxAt(device, playing.time) !== null).length} of ${chart.devices}`).join(" · ")}`);
function play() {   // a line of time moves through what is seen; the key stops it
  if (playing?.running) { playing.running = false; tellTime(); return; }
  const last = finish(), from = playing && playing.time < last ? playing.time : 0, begun = performance.now();
  const mine = playing = { time: from, running: true };
  (function tick() {
    if (playing !== mine || !mine.running) return;
    mine.time = from + (performance.now() - begun) / 1000 / PLAY * last;
    if (mine.time >= last) { playing = null; redraw(); return; }
    redraw();
    requestAnimationFrame(tick);
  })();
}

function stepTime(by) {   // the line of time at the next or previous begin or end of an action
  const now = playing ? playing.time : by > 0 ? -1 : until, least = until * 1e-9;
  let best = null;
  for (const chart of charts) for (let device = 0; device < chart.devices; device++) {
    const [first, last] = chart.boxesOf(device), near = firstWhere(first, last, (box) => chart.end(box) > now + (by > 0 ? least : -least));
    for (const box of [near - 1, near, near + 1]) if (box >= first && box < last)
      for (const time of [chart.start(box), chart.end(box)]) if ((time - now) * by > least && (best === null || (time - best) * by < 0)) best = time;
  }
  if (best === null) return;
  playing = { time: best, running: false };
  tellTime();
  redraw();
}

function print() {   // draw at a high resolution on white, as wide as the paper
  paper = true; playing = null; if (step < 0) hovered = null;
  dress();
  fillLegend();
  parts.closes = !parts.table.open;
  parts.table.open ||= charts.every(({ devices }) => devices <= 16);
  fillTable();
  const before = { row: view.row, top: view.top, y: view.y };
  Object.assign(view, { row: 0, y: 0 });
  width = 1040;
  height = Math.min(CAPS + AXIS + sumOf(charts.map(({ devices }) => HEAD + BELOW + Math.min(devices * 28, 400) + (on.has("memory") ? 60 : 0))), 620);
  canvas.width = width * 3; canvas.height = height * 3;
  context.setTransform(3, 0, 0, 3, 0, 0);
  draw();
  Object.assign(view, before);
}

// The state as text: t=FROM,TO in seconds, y=ROW,SCROLLED in pixels and the part of the hidden rows above, on=..., at=CHART,ITEM, range=FROM,TO, base=CHART, theme=NAME
function stateText() {
  const state = new URLSearchParams();
  const number = (value) => String(Number(value.toPrecision(10)));
  if (view.t0 > 0 || view.t1 < until) state.set("t", [view.t0, view.t1].map(number).join(","));
  if (view.row || view.y) state.set("y", [Number(view.row.toFixed(2)), Math.round(view.y), Number(view.top.toFixed(3))].join(","));
  if ([...on].sort().join() !== [...options.on].sort().join()) state.set("on", [...on].join(","));
  if (range) state.set("range", range.map(number).join(","));
  if (base !== (options.base || 0)) state.set("base", base);
  if (options.theme) state.set("theme", options.theme);
  if (chosen) state.set("at", [charts.indexOf(chosen.chart), chosen.item].join(","));
  return state.toString().replaceAll("%2C", ",");
}

function writeState() {
  if (!charts.length) return;
  const text = stateText();
  options.onState?.(text);
  if (options.fragment && text !== location.hash.slice(1)) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

function setState(text) {   // the first real charts get it too
  readState = text;
  if (!charts.some(isReal)) return;
  const wanted = new URLSearchParams(text), pair = (key) => (wanted.get(key) || "").split(",").map(Number);
  const [t0, t1] = pair("t"), [row, y, top] = pair("y"), [number, item] = wanted.has("at") ? pair("at") : [];
  Object.assign(view, t1 > t0 ? { t0, t1 } : { t0: 0, t1: until }, { row: row > 0 ? row : 0, top: top > 0 ? top : 0, y: y > 0 ? y : 0 });
  on.clear();
  for (const name of (wanted.get("on") ?? options.on.join()).split(",")) if (SWITCHES.some(([known]) => known === name)) on.add(name);
  options.theme = Object.keys(THEMES).find((name) => name === wanted.get("theme")) ?? options.theme;
  dress();
  base = Math.min(Number(wanted.get("base") ?? options.base) || 0, charts.length - 1);
  const [begin, end] = pair("range");
  range = end > begin ? [begin, end] : null;
  fillRange();
  refresh();
  if (item >= 0 && item < charts[number]?.column.cause.length) choose(charts[number], item); else choose(null);
}
