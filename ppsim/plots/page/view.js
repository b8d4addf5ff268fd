// What is seen: sizes of the canvas and of its parts, the linear axis of time, and zoom.
const CAPS = 20, HEAD = 22, AXIS = 24, BELOW = 8, TALLEST = 160, EDGE = 12;   // pixels: captions, numbers of a schedule, axis; EDGE: at the left of names, as of the legend
const view = { t0: 0, t1: 1, row: 0, top: 0, y: 0 };   // time in seconds; pixels of a row (0: all fit); part of the rows that do not fit which is above; pixels that schedules are scrolled by
const on = new Set();   // names of visible parts
let charts = [], until = 1, chosen = null, followed = [];   // chosen: { chart, item }; followed: the chain of its waits
let canvas, context, theme = null, themeName = "light", width = 0, height = 0, asked = false, base = 0;
let kept = [];   // pixels of the charts' rows before a range was selected
let keyed = false;   // whether a key was used after the pointer, which then shows the focus
let viewBefore = null;   // the view before an action was brought into sight, which Escape restores
let range = null, playing = null, hovered = null, pointed = null, step = -1, paper = false;   // seconds [from, to]; { time, since }; { chart, item }; seconds at the pointer; index on the critical path

const between = (value, least, most) => Math.min(Math.max(value, least), most), sumOf = (numbers) => [...numbers].reduce((sum, one) => sum + one, 0);
const upTo = (count) => [...Array(count).keys()];
const longest = () => Math.max(...charts.map(({ makespan }) => makespan));
const extent = () => Math.max(until, longest());   // with what is cut
const isReal = (chart) => chart.boxes > 0;   // others are parts that wait for their actions
const phone = () => options.isPhone?.() ?? width <= 700;
const isNarrow = () => phone() || width < 700;   // some numbers are in the legend
const left = () => (charts.some((chart) => chart.towers) ? (phone() ? 64 : 84) : phone() ? 30 : 54);
const right = () => (phone() ? EDGE : 104);
const innerWidth = () => Math.max(width - left() - right(), 1), rightEdge = () => left() + innerWidth();
const pane = () => Math.max(height - CAPS - AXIS, 1);   // pixels of the schedules
const seenCharts = () => charts.filter((chart) => !isBare(chart)).length;
const tallestRow = () => (seenCharts() < 3 - phone() ? 60 : seenCharts() > 2 && phone() ? 34 : 44);
const shown = () => Math.min(charts.length, 4);   // schedules that share the height

const LEGIBLE = 24;   // pixels of a row that the parts below the chart leave it
function needed() {   // pixels of the pane before the page scrolls: legible rows, if the window has them without the tables
  const rows = CAPS + AXIS + sumOf(charts.slice(0, 4).map(({ devices }) => HEAD + BELOW + devices * LEGIBLE + (on.has("memory") ? 56 : 0)));
  const { top } = parts.pane.getBoundingClientRect(), others = [...document.querySelectorAll(".devices > summary, #measures"), parts.range, parts.status].filter((one) => one.getBoundingClientRect().top > top).reduce((sum, one) => sum + one.offsetHeight + 4, 0);
  return Math.max(Math.min(rows, window.innerHeight - top - window.scrollY - others), 170);
}

const BARE = 2;   // pixels of the rows of a schedule that has a fault and no picture
const isBare = (chart) => chart.faulty && !isReal(chart);

function partOf(chart) {   // pixels of a schedule: its rows, and its memory
  if (isBare(chart)) return { row: BARE / chart.devices, rows: BARE, memory: 0 };
  const bare = charts.filter(isBare).length, notes = sumOf(charts.map(({ noted }) => noted || 0)), each = Math.floor((pane() - notes - bare * (HEAD + BARE + BELOW)) / Math.max(shown() - bare, 1)), alone = seenCharts() === 1, least = notes ? Math.min(8 * chart.devices, 64) : 12;   // beside notes: what has no space is scrolled to
  const held = range && kept[charts.indexOf(chart)], free = each - HEAD - BELOW, over = charts.some(({ memory: { most, capacity } }) => capacity && most > capacity), most = alone && chart.devices > 16 ? 72 : 170;
  const memory = !on.has("memory") || each < (phone() ? 120 : 90) ? 0 : held ? 24 : alone && chart.devices > 16 ? most : Math.round(Math.min(each * 0.22, 56 + 34 * over));   // at least; a range's panel takes from it first: rows stay about where they are
  const space = Math.max(Math.min(held || chart.devices * tallestRow(), free - memory), least), fits = Math.max(space / chart.devices, view.row), row = fits < RULES.lowest ? fits : Math.floor(fits), rows = Math.min(row * between(Math.floor(space / row + 1e-9), 1, chart.devices), space);   // whole pixels, so that numbers are alike in all rows, and whole rows
  return { row, rows, memory: memory && between(free - rows, memory, most + (view.row && row)) };   // what the rows leave
}
const rowHeight = (chart) => partOf(chart).row;
const isLow = (chart) => rowHeight(chart) < 12;   // rows of actions alone: no lanes, no lines of transfers, slots in the mean of their colours
const hasLines = (chart) => isReal(chart) && !isLow(chart) && boxWidth(chart) >= RULES.mark;   // of transfers

function places() {   // per schedule the pixels of the canvas at which its numbers, rows and memory begin
  let y = CAPS - view.y;
  return charts.map((chart) => {
    const { row, rows, memory } = partOf(chart), hidden = view.row ? Math.max(row * chart.devices - rows, 0) : 0;
    const place = { chart, title: y, note: y += HEAD, rows: y += chart.noted || 0, end: y += rows, row, hidden, first: y - rows - Math.round(hidden * view.top) };   // first: where the row of device 0 begins
    if (memory) { place.memory = y + 6; place.tall = memory - 6; y += memory; }
    place.bottom = y += BELOW;
    place.title = Math.max(place.title, Math.min(CAPS, place.end - HEAD));   // the numbers stay in sight while rows are
    return place;
  });
}
const contentHeight = () => sumOf(charts.map((chart) => { const { rows, memory } = partOf(chart); return HEAD + (chart.noted || 0) + rows + memory + BELOW; }));

const axisTop = () => CAPS + Math.min(pane(), contentHeight() - BELOW + 6);

const toX = (time) => left() + (time - view.t0) / (view.t1 - view.t0) * innerWidth();
const toTime = (x) => view.t0 + (x - left()) / innerWidth() * (view.t1 - view.t0);
const pixels = (seconds) => seconds / (view.t1 - view.t0) * innerWidth();
const boxWidth = (chart) => pixels(chart.box);   // of the median box

function see(from, to) {   // show these seconds, at least a hundred-millionth of the whole
  const span = between(to - from, until * 1e-8, until), begin = between(from, 0, extent() - span);
  Object.assign(view, span > until * (1 - 1e-9) ? { t0: 0, t1: until } : { t0: begin, t1: begin + span });
}

function focus() {   // [time, y] about which keys and buttons zoom: those of the chosen action if it is in sight
  const { chart, item } = chosen || {}, place = chart && places().find((one) => one.chart === chart), time = chart && (chart.start(item) + chart.end(item)) / 2;
  return time > view.t0 && time < view.t1 ? [time, between(place.first + (chart.deviceOf(item) + 0.5) * place.row, place.rows, place.end)] : [(view.t0 + view.t1) / 2, CAPS + pane() / 2];
}

function zoom(factor, time, y) {   // in time; rows that are much lower than boxes are long grow with them, and shrink again
  viewBefore = null;
  see(time - (time - view.t0) * factor, time + (view.t1 - time) * factor);
  const chart = placeAt(y)?.chart, long = chart && boxWidth(chart) / rowHeight(chart);
  if (factor < 1 ? long > 1 && isLow(chart) : view.row && long < 1) zoomRows(1 / factor, y); else clamp();
}
function move(across, down) { viewBefore = null; const span = (view.t1 - view.t0) * across; see(view.t0 + span, view.t1 + span); scroll(down); clamp(); }
function showWhole() { viewBefore = null; Object.assign(view, { t0: 0, t1: until, row: 0, top: 0, y: 0 }); clamp(); }

function scroll(by) {   // pixels: the rows of all schedules, and behind their last one the schedules
  const hidden = Math.max(...places().map((place) => place.hidden), 0), top = view.top + (hidden && by / hidden);
  view.top = between(top, 0, 1);
  if (top === view.top && hidden) return;
  view.y += hidden ? (top - view.top) * hidden : by;
}

const placeAt = (y) => places().find((one) => y < one.bottom) || places().at(-1);

function zoomRows(factor, y) {   // the row at y does not move
  const found = placeAt(y);
  if (!found) return;
  const point = between(y, found.rows, found.end), device = (point - found.first) / found.row, row = Math.max(found.row, view.row) * factor;
  view.row = 0;
  const fitting = Math.min(...charts.map(rowHeight));
  view.row = row > fitting * 1.001 ? Math.min(row, TALLEST) : 0;
  const now = places().find((one) => one.chart === found.chart);
  view.top = now.hidden ? (now.rows + device * now.row - point) / now.hidden : 0;
  clamp();
}

function clamp() {
  if (view.t0 < 0 || view.t1 > extent() || view.t1 - view.t0 < until * 1e-8) see(view.t0, view.t1);
  view.top = view.row ? between(view.top, 0, 1) : 0;
  const more = Math.max(contentHeight() - pane(), 0);
  view.y = more < 2 ? 0 : between(view.y, 0, more);
  parts.filler.style.height = `${more < 2 ? 0 : more}px`;
  parts.pane.scrollTop = view.y;
  document.documentElement.style.setProperty("--below", Math.max(pane() - contentHeight() + BELOW - 6, 0));   // what stands below the axis moves up to it
  redraw();
  clearTimeout(writing);
  writing = setTimeout(writeState, 200);
}

function redraw() { if (!asked && !paper) { asked = true; requestAnimationFrame(draw); } }
