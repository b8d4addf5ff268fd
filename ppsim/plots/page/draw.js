// The layout of the canvas, and the rows: boxes, or shares of time if boxes are too narrow to see.
const TOP = 4, AXIS = 40, NAMES = 16, TITLE = 24, GAP = 10, TALLEST = 160, USUAL = 44;
const view = { t0: 0, t1: 1, row: 0, y: 0 };   // time in seconds; pixels: height of a row (0: automatic), and scrolled offset
const on = new Set(), hidden = new Set();   // names of visible parts; legend titles of hidden kinds
let charts = [], until = 1, chosen = null, followed = [];   // chosen: { chart, item }; followed: the chain of its waits
let canvas, context, colours = {}, width = 0, height = 0, asked = false, titled = false;
const drawn = { boxes: false, stacks: false, scale: false };   // forms in the picture, which legend and axis explain

const axis = () => AXIS + (borders ? NAMES : 0);
const pane = () => Math.max(height - TOP - axis(), 1);
const devices = () => charts.reduce((sum, chart) => sum + chart.devices, 0);
const memoryHeight = () => Math.min(Math.max(0.3 * pane() / Math.max(charts.length, 1), 44), 130);
const aroundRows = () => charts.length * ((titled ? TITLE : 0) + (on.has("memory") ? memoryHeight() + 6 : 0) + GAP);
const flattest = () => (charts.length > 1 ? 8 : 3);   // minimum pixels of a row; if rows do not fit, the canvas scrolls
const fittingRow = () => Math.min(Math.max((pane() - aroundRows()) / Math.max(devices(), 1), flattest()), USUAL);
const rowHeight = () => view.row || fittingRow();

function places() {   // per chart the pixels of the canvas at which its title, rows and memory begin
  let y = TOP - view.y;
  return charts.map((chart) => {
    const place = { chart, title: y, rows: y += titled ? TITLE : 0, end: y += chart.devices * rowHeight() };
    if (on.has("memory")) { place.memory = y += 6; y += memoryHeight(); }
    y += GAP;
    return place;
  });
}
const contentHeight = () => aroundRows() + devices() * rowHeight();

function bandOf(chart, place, device) {   // pixels of a row: `above` and `whole` of its filled part, `top` and `tall` of its actions
  const row = rowHeight(), gap = row > 8 ? row * 0.1 : 0;
  const above = place.rows + device * row + gap / 2, whole = row - gap;
  return { above, whole, top: above + chart.band[0] * whole, tall: (chart.band[1] - chart.band[0]) * whole };
}

function size(ratio) {
  width = canvas.clientWidth; height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
}

function draw() {
  asked = tooManyLines = false;
  Object.assign(drawn, { boxes: false, stacks: false, scale: false });
  if (!paper) size(window.devicePixelRatio || 1);
  context.clearRect(0, 0, width, height);
  lines.length = 0;
  context.save();
  context.beginPath(); context.rect(0, 0, width, TOP + pane()); context.clip();
  for (const place of places()) drawChart(place);
  context.restore();
  drawAxis();
  explain();
}

function drawChart(place) {
  const { chart } = place;
  if (place.title > height || (place.memory ?? place.end) + memoryHeight() < 0) return;
  if (titled) drawTitle(place);
  const row = rowHeight(), first = Math.max(Math.floor(-place.rows / row), 0);
  const last = Math.min(Math.ceil((height - place.rows) / row), chart.devices);
  clipped(place.rows, place.end, () => {
    const moves = on.has("transfers") ? transfersIn(chart, first, last) : [];
    for (let device = first; device < last; device++) drawGround(chart, bandOf(chart, place, device), device);
    drawTransfers(chart, place, moves.filter((item) => isFar(chart, item)));   // behind the boxes, so that they cross no label
    for (let device = first; device < last; device++) drawDevice(chart, bandOf(chart, place, device), device);
    drawTransfers(chart, place, moves.filter((item) => !isFar(chart, item)));
    if (on.has("critical")) drawPath(chart, place, chart.critical ??= chart.chain(chart.last));
    if (chosen?.chart === chart) drawFollowed(chart, place);
  });
  drawNames(chart, place, first, last);
  if (place.memory !== undefined) drawMemory(chart, place.memory);
  if (borders) drawBreaks(place.rows, place.memory === undefined ? place.end : place.memory + memoryHeight());
  context.fillStyle = colours.ink;
  if (titled) context.fillRect(toX(chart.makespan), place.rows, 1, place.end - place.rows);
}

const clipped = (from, to, paint) => within(LEFT, from, LEFT + innerWidth(), to + 1, paint);   // clips to the rows, between names and right margin

function within(left, top, right, bottom, paint) {
  context.save();
  context.beginPath(); context.rect(left, top, right - left, bottom - top); context.clip();
  paint();
  context.restore();
}

function drawTitle({ chart, title }) {
  const part = chart.makespan / charts[0].makespan - 1;
  const apart = chart === charts[0] || !charts[0].makespan ? "" : Math.abs(part) < 5e-4 ? " (±0 %)" : ` (${part < 0 ? "−" : "+"}${Math.abs(100 * part).toFixed(1)} %)`;
  context.fillStyle = colours.ink;
  context.textAlign = "left"; context.textBaseline = "middle";
  context.font = "600 13px system-ui, sans-serif";
  context.fillText(chart.title, 8, title + TITLE / 2 + 2);
  const wide = context.measureText(chart.title).width;
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = colours.quiet;
  context.fillText(`${seconds(chart.makespan)}${chart.interval}${apart} · bubble ${percent(chart.bubble)}`, 8 + wide + 14, title + TITLE / 2 + 2);
}

function drawGround(chart, band, device) {   // its visible part is idle time, hatched between boxes
  const from = Math.max(toX(0), LEFT), to = Math.min(toX(chart.makespan), width - right());
  context.fillStyle = colours.lane;
  context.fillRect(from, band.above, to - from, band.whole);
  const boxes = chart.firstStartingAfter(device, view.t1) - chart.firstEndingAfter(device, view.t0);
  for (const style of [colours.idle, ...(band.tall < 10 || tooMany(boxes, to - from) ? [] : [colours.lines])]) {
    context.fillStyle = style;
    context.fillRect(from, band.top, to - from, band.tall);
  }
}

function drawDevice(chart, band, device) {
  drawLanes(chart, device, band);
  for (const [from, to] of stretches()) {
    const first = chart.firstEndingAfter(device, from), last = chart.firstStartingAfter(device, to);
    const paint = tooMany(last - first, toX(to) - toX(from)) ? () => drawShares(chart, device, band, from, to) : () => drawBoxes(chart, first, last, band, toX(from), toX(to));
    if (borders) within(toX(from), band.above, toX(to), band.above + band.whole, paint); else paint();
  }
  if (chart.instants) drawInstants(chart, device, band);
}

function drawBoxes(chart, first, last, band, left, right) {   // boxes `first` to before `last`, between two pixels
  drawn.boxes ||= last > first;
  for (let box = first; box < last; box++) drawBox(chart, box, band);
  if (band.tall >= 10) drawLabels(chart, first, last, band, left, right);
}

function drawBox(chart, box, { top, tall }) {
  const x = toX(chart.start(box)), wide = toX(chart.end(box)) - x, kind = chart.kindOf(box), shade = chart.column.shade[box];
  const room = wide > 3 ? wide - Math.min(1, wide / 12) : Math.max(wide, 0.6), away = hidden.has(kind.title);
  if (kind.slot && !away) {   // the first part is in the upper half
    chart.parts(box).forEach(([letter], half) => {
      context.fillStyle = kind.parts[letter][shade];
      context.fillRect(x, top + half * tall / 2, room, tall / 2);
    });
  } else {
    context.fillStyle = away ? colours.ground : kind.colours[shade];
    context.fillRect(x, top, room, tall);
  }
}

const labelFont = ({ tall }) => `${Math.min(tall * 0.62, 12)}px system-ui, sans-serif`;
const shortName = (chart, box) => chart.parts(box).map((part) => part[2]).join("/");

function drawLabels(chart, first, last, band, left, right) {   // numbers of a row, in all boxes, or of every k-th microbatch, also over narrow boxes
  const boxes = [];
  context.font = labelFont(band);
  const digit = context.measureText("0").width;
  for (let box = first; box < last; box++) {
    const ends = [toX(chart.start(box)), toX(chart.end(box))], from = Math.max(ends[0], left), to = Math.min(ends[1], right);
    const wide = shortName(chart, box).length * digit + 2, isCut = (from > ends[0] || to < ends[1]) && to - from < wide;
    if (chart.column.length[box] && to > from && !isCut && !hidden.has(chart.kindOf(box).title)) boxes.push({ box, from, to, wide });
  }
  const inside = ({ from, to, wide }) => from + to - wide >= 2 * left && from + to + wide <= 2 * right;
  const meets = (one, before) => before && one.from + one.to - before.from - before.to < one.wide + before.wide;
  for (const step of [1, 2, 5, 10, 20, 50, 100]) {
    const chosen = boxes.filter((one) => inside(one) && chart.column.microbatch[one.box] % step === 0);
    const clash = chosen.filter((one, place) => meets(one, chosen[place - 1]) && shortName(chart, one.box) !== shortName(chart, chosen[place - 1].box));
    if (clash.length > (step === 1 ? 0.1 * boxes.length : 0)) continue;
    let before = null;
    for (const one of chosen) if (!meets(one, before)) drawLabel(chart, (before = one), band, one.wide > one.to - one.from);
    return;
  }
}

function drawLabel(chart, { box, from, to }, { top, tall }, over = false) {   // `over`: the label is wider than its box and gets an edge
  const kind = chart.kindOf(box);
  const text = to - from > 110 && tall > 14 ? nameOf(chart, box) : shortName(chart, box);
  context.font = labelFont({ tall });
  if (!over && context.measureText(text).width + 1.5 > to - from) return;
  context.textAlign = "center"; context.textBaseline = "middle";
  if (kind.slot || over) {
    context.strokeStyle = "#fff"; context.lineWidth = 3; context.lineJoin = "round";
    context.strokeText(text, (from + to) / 2, top + tall / 2 + 0.5);
  }
  context.fillStyle = kind.slot || over ? "#222" : kind.inks[chart.column.shade[box]];
  context.fillText(text, (from + to) / 2, top + tall / 2 + 0.5);
}

function drawLanes(chart, device, { above, whole }) {   // optimizer steps are among the actions
  for (const part of chart.lanes.filter((part) => !hidden.has(part.title))) {
    const [from, to] = chart.spansOf(part, device), top = above + part.lane[0] * whole, tall = (part.lane[1] - part.lane[0]) * whole;
    for (let item = from; item < to; item++) {
      const x = toX(chart.start(item)), wide = toX(chart.end(item)) - x;
      if (x > width || x + wide < LEFT) continue;
      context.fillStyle = part.colour;
      context.fillRect(x, top, Math.max(wide, 0.6), tall);
      context.strokeStyle = colours.outline; context.lineWidth = 0.7;
      if (wide > 2) context.strokeRect(x, top, wide, tall);
      if (tall < 9) continue;
      context.font = `${Math.min(tall * 0.8, 12)}px system-ui, sans-serif`;
      const name = nameOf(chart, item), texts = [name, part.numbered || part.staged ? name.match(part.numbered ? /\d*$/ : /^\d*/)[0] : "step"];
      const text = texts.find((one) => context.measureText(one).width + 3 <= wide);
      if (text === undefined) continue;
      context.fillStyle = part.ink;
      context.textAlign = "center"; context.textBaseline = "middle";
      context.fillText(text, x + wide / 2, top + tall / 2 + 0.5);
    }
  }
}

function drawInstants(chart, device, { top, tall }) {   // ticks for actions of zero length
  const [first, last] = chart.boxesOf(device);
  for (let box = first; box < last; box++)
    if (chart.column.length[box] === 0 && chart.start(box) >= view.t0 && chart.start(box) <= view.t1) {
      const kind = chart.kindOf(box);
      context.fillStyle = hidden.has(kind.title) ? colours.ground : kind.colours[chart.column.shade[box]];
      context.fillRect(toX(chart.start(box)) - 0.5, top, 1, tall);
    }
}

const colourOf = (kind) => (hidden.has(kind.title) ? colours.ground : kind.colours[0]);
