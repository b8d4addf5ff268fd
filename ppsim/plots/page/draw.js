// The picture: fills as means of pixels, and upon them gaps, marks and numbers that fade in with the width of boxes (ppsim.plots.scale).
const FONT = 'Inter, "Helvetica Neue", Arial, "Liberation Sans", sans-serif';
const font = (size, bold) => `${bold ? "700 " : ""}${size}px ${FONT}`;
const gapOf = (chart) => { const row = rowHeight(chart), lined = on.has("transfers") && hasLines(chart) ? Math.min(0.3 * row, row - NUMBERED) : 0; return row < (boxWidth(chart) < 3 ? RULES.lined : 6) ? 0 : between(Math.round(Math.max(0.1 * row, lined)), paper ? 2 : 1, lined ? 12 : 4); };   // more for transfers, if numbers stay

function size(ratio) {
  width = canvas.clientWidth; height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
}

let smallest = 0, lettered = false;   // pixels of all numbers of the picture, and whether kinds' letters precede them
function draw() {
  asked = false;
  if (!paper) size(window.devicePixelRatio || 1);
  fillBox(theme.paper, 0, 0, width, height);
  const single = charts.filter((chart) => isReal(chart) && !isMixed(chart));
  lines.length = 0; lettered = themeName === "grey" && single.every((chart) => numbersOf(chart, true).count === numbersOf(chart, false).count);   // one manner a picture
  smallest = Math.min(...single.map((chart) => numbersOf(chart).least));
  root.toggleAttribute("data-playing", !!playing);
  within(0, CAPS, width, CAPS + pane(), () => { if (charts.some(isReal)) drawGrid(); for (const place of places()) drawChart(place); if (range) drawOutside(...range, themeName === "dark" ? 0.5 : 0.62, range); if (playing) drawOutside(view.t0, playing.time, 0.75, [playing.time]); });
  drawCaptions();
  drawAxis();
  if (keyed && canvas.matches(":focus-visible") && !chosen && !hovered) { pen(theme.text, 1); context.strokeRect(1.5, 1.5, width - 3, Math.min(height, axisTop() + AXIS) - 2); }   // where nothing covers it; what is chosen has an outline of its own
  fillLegend();
  options.onDraw?.(places(), columns().at(-1), charts.indexOf(baseChart()), axisTop());
}

const measure = (text) => context.measureText(text).width;   // pixels, in the font of the text before
function pen(colour, wide) { context.strokeStyle = colour; context.lineWidth = wide; }
function fillBox(colour, ...box) { context.fillStyle = colour; context.fillRect(...box); }

function within(x1, y1, x2, y2, paint) {
  context.save();
  context.beginPath(); context.rect(x1, y1, x2 - x1, y2 - y1); context.clip();
  paint();
  context.restore();
}

function write(text, x, y, { size = 11, bold = false, align = "left", colour = theme.quiet, line = "alphabetic", widest } = {}) {
  context.font = font(size, bold); context.textAlign = align; context.textBaseline = line;
  context.fillStyle = colour; context.fillText(text, x, y, widest);
  return measure(text);
}

function bandOf(chart, place, device, edges = chart.band) {   // pixels of a row: top and height of the part of its boxes
  if (isLow(chart)) edges = [0, 1];
  const [begin, end] = [device, device + 1].map((one) => place.first + one * place.row).map((y) => (place.row < 6 ? y : Math.round(y)));
  const whole = end - begin - gapOf(chart);
  return { begin, end, whole, top: begin + edges[0] * whole, tall: (edges[1] - edges[0]) * whole };
}

function visible(place) { return [Math.max(Math.floor((Math.max(place.rows, CAPS) - place.first) / place.row + 1e-6), 0), Math.min(Math.ceil((Math.min(place.end, CAPS + pane()) - place.first) / place.row - 1e-6), place.chart.devices)]; }

function drawGrid() {   // lines through all schedules
  for (const { chart, rows, title, bottom } of places()) if (!isBare(chart)) for (const tick of ticksOf().ticks) { const top = Math.max(rows, title + HEAD) - 2; fillBox(theme.grid, Math.round(toX(tick)), top, 1, bottom - 2 - top); }
}

function drawChart(place) {
  if (place.title > height || place.bottom < 0) return;
  const { chart } = place;
  drawNumbers(place);
  within(0, place.title + HEAD - 6, width, CAPS + pane(), () => { drawParts(place); if (chart.dimmed) veil(1 - chart.dimmed, 0, place.title + HEAD - 3, width, place.bottom - place.title - HEAD); });
}

function veil(alpha, x, y, wide, tall) {   // paper over a part of the picture
  if (wide > 0) { context.globalAlpha = alpha; fillBox(theme.paper, x, y, wide, tall); context.globalAlpha = 1; }
}

function drawParts(place) {   // rows, names, idle time by cause and memory, below the numbers
  const { chart, hidden } = place, [first, last] = visible(place), around = hidden ? 0 : 3;   // pixels that ends and names take above and below the rows
  if (isBare(chart)) return;
  if (!isReal(chart)) { fillBox(theme.not_idle, left(), place.rows, innerWidth(), place.end - place.rows); return; }
  const paths = [...(on.has("critical") ? [chart.critical ??= chart.chain(chart.last)] : []), ...(chosen?.chart === chart ? [followed] : [])];
  place.path = new Set(paths.flat());
  within(left(), place.title + HEAD - around, rightEdge() + 1, place.end + around, () => {
    const moves = on.has("transfers") ? transfersIn(chart, first, last) : [];
    drawFills(chart, place, first, last);
    if (chart.makespan < view.t1) within(Math.max(toX(chart.makespan), left()) + 1, place.rows - 3, rightEdge() + 1, place.end, drawGrid);
    within(left(), place.rows, rightEdge(), place.end, () => { for (let device = first; device < last; device++) drawRow(chart, place, device); });
    extra.draw?.(chart, place);
    drawTransfers(chart, place, moves);
    for (const path of paths) drawPath(chart, place, path);
    drawAreas(chart, place);
    for (const one of [chosen, hovered]) if (one?.chart === chart) drawOutline(chart, place, one.item);
    context.fillStyle = theme.text;
    if (place.end > CAPS) context.fillRect(toX(chart.makespan) - 0.75, place.rows - 1, 1.5, place.end - place.rows + 4);   // below underlined buttons
  });
  if (chart.makespan > view.t1 * (1 + 1e-9) && view.t1 >= until) {   // cut: where it ends
    const text = `→ ${seconds1(chart.makespan)}`, wide = widthOf(text) + 8;
    fillBox(theme.paper, rightEdge() - wide, place.rows, wide, 15);
    write(text, rightEdge() - 4, place.rows + 11, { align: "right", colour: theme.text });
  }
  within(0, place.title + HEAD - around, width, place.end + around, () => {
    drawNames(place, first, last);
    if (on.has("ledger") && !phone()) drawCauses(place, first, last);
  });
  const seen = (place.end - place.rows) ** 2 / (place.row * chart.devices);   // which rows are seen
  if (hidden) { fillBox(theme.edge, rightEdge() + 5, place.rows + view.top * (place.end - place.rows - seen), 3, seen); }
  if (place.memory) drawMemory(place);
}

function drawFills(chart, place, first, last) {   // the rows: means of pixels, and the paper between rows
  if (last <= first) return;
  const ratio = ratioOf(), cols = Math.round(innerWidth() * ratio), low = place.row * ratio < 6;
  const high = (last - first) * place.row, lines = low ? Math.max(Math.round(high * ratio), 1) : 0;
  context.imageSmoothingEnabled = false;
  const { sheet, halves } = raster(chart, first, last, lines, cols);
  if (lines) context.drawImage(sheet, left(), Math.round((place.first + first * place.row) * ratio) / ratio, innerWidth(), lines / ratio);
  else for (let device = first; device < last; device++) {
    const { begin, end, top, tall, whole } = bandOf(chart, place, device), gap = end - begin - whole;
    const from = (device - first) * halves, all = gap > 0 && top + tall === begin + whole ? tall + gap : tall;
    for (let half = 0; half < halves; half++) {
      const y1 = top + half * tall / 2, y2 = half === halves - 1 ? top + all : top + tall / 2;
      context.drawImage(sheet, 0, from + half, cols, 1, left(), y1, innerWidth(), y2 - y1);
    }
    if (gap > 0) veil(1, left(), begin + whole, innerWidth(), gap);
  }
}

function drawAreas(chart, place) {   // the names of areas of narrow actions (ppsim.plots.areas), in the middle of what is seen of them, or beside a path
  const path = [...place.path].filter((item) => chart.isBox(item)), gap = gapOf(chart), [begin, end] = visible(place), named = new Set();
  for (const { words, spans: [first, last, top, bottom] } of flatness(chart) > 0.5 ? chart.areas : []) {
    const [x1, x2] = [Math.max(first, view.t0, range?.[0] ?? 0), Math.min(last, view.t1, range?.[1] ?? last)].map(toX), [y1, y2] = [Math.max(top, begin), Math.min(bottom, end)], half = widthOf(words) / 2 + 2;
    if (x2 - x1 < 2 * half || (y2 - y1) * place.row - gap < 14 || (named.has(words) && chart.areas.filter((one) => one.words === words).length > 3)) continue;   // once is enough
    const spots = [0.5, 0.25, 0.75].flatMap((across) => [0.5, 0.2, 0.8].map((down) => { const row = between(y1 + down * (y2 - y1), y1 + 7 / place.row, y2 - 7 / place.row); return [between(x1 + across * (x2 - x1), x1 + half, x2 - half), place.first + (gap ? Math.floor(row) + 0.5 : row) * place.row - gap / 2]; }));
    const spot = spots.find(([x, y]) => !path.some((item) => toX(chart.end(item)) > x - half - 2 && toX(chart.start(item)) < x + half + 2 && Math.abs(place.first + (chart.deviceOf(item) + 0.5) * place.row - y) < 9 + place.row / 2));
    if (!spot) continue;
    named.add(words);
    write(words, ...spot, { align: "center", line: "middle", colour: inkAt(place, ...spot) });
  }
}

function inkAt(place, x, y) {   // of text on a mixture
  const { shares } = footprint(place, x, y), colourOf = (title) => { const kind = place.chart.kinds.find((one) => one.title === title); return kind ? theme.kinds[kind.name] : theme.idle; };
  return inkFor(sumOf([...shares].map(([title, part]) => part * bright(colourOf(title)))) / sumOf(shares.values()));
}

function drawRow(chart, place, device) {
  const band = bandOf(chart, place, device);
  if (!isLow(chart)) for (const part of chart.lanes) if (part.banded) drawLane(chart, place, device, part);
  for (const part of chart.lanes) if (!part.banded) {
    const [from, to] = chart.spansOf(part, device);
    for (let item = from; item < to; item++) {
      const x = toX(chart.start(item)), wide = pixels(chart.duration(item));
      if (part.sort !== "fills" && !isLow(chart) && wide > 1) fillBox(theme.text, x, band.top, 1, band.tall);   // a line at its begin
    }
  }
  const first = chart.firstEndingAfter(device, view.t0), last = chart.firstStartingAfter(device, view.t1);
  const is_mixed = isMixed(chart);
  if (is_mixed && !chart.instants && !chart.begins.size) return;
  for (let box = first; box < last; box++) {
    const wide = pixels(chart.duration(box)), x = toX(chart.start(box));
    if (chart.column.length[box] === 0) { fillBox(theme.kinds[chart.kindOf(box).name], x - 0.5, band.top, 1, band.tall); }
    if (wide <= 3 || is_mixed) continue;
    drawMarks(chart, box, band, x, wide, device, place);
  }
  for (const box of chart.begins) if (box >= first && box < last) for (const [half, colour] of [[2, theme.paper], [0.75, theme.text]]) { fillBox(colour, toX(chart.start(box)) - half, band.begin - 1, 2 * half, band.end - band.begin); }
}

function drawMarks(chart, box, { top, tall }, x, wide, device, place) {   // underline, overline and number of a box, or of both parts of a slot; no number in a row that is cut
  const numbers = place.numbers ??= numbersOf(chart), parts = chart.parts(box), each = tall / parts.length, local = chart.column.local[box], reverse = chart.column.reverse?.[box];
  const thick = between(Math.round(0.14 * each), 2, 4), inset = Math.max(1, Math.round(thick / 2)), pad = wide >= 8 ? 1.5 : 0.5;   // of marks
  parts.forEach(([letter, , microbatch], half) => {
    const y = top + half * each;
    const ink = context.fillStyle = inkOn(theme.kinds[letter]);
    if (numbers.tall / parts.length >= 9) {
      context.globalAlpha = between(boxWidth(chart) - RULES.mark + 1, 0, 1);   // they come by degrees
      const part = chart.locals > 4 && wide < 12 ? 1 : local / (chart.locals - 1 || 1);
      if (local) context.fillRect(x + pad, y + each - inset - thick, part * (wide - 2 * pad), thick);
      if (reverse) context.fillRect(x + pad, y + inset, wide - 2 * pad, thick);
      context.globalAlpha = 1;
    }
    const from = Math.max(x, left()), to = Math.min(x + wide, rightEdge()), down = !!reverse - !!local, number = numberOf(chart, microbatch);
    const { text, size } = numbers.of(`${letter}${parts.length}`, device, wide, number);
    if (!size || range?.some((time) => Math.abs(2 * toX(time) - from - to) < textWidth(text, size)) || y < place.rows - 1 || y + each > place.end + 1 || ((from > x || to < x + wide) && textWidth(text, size) > to - from)) return;
    const line = y + each / 2 + size * 0.36 + 0.4 * (thick + inset) * down;   // whole pixels, away from the mark
    write(text, (from + to) / 2, down > 0 ? Math.ceil(line) : down ? Math.floor(line) : Math.round(line), { size, align: "center", colour: ink, widest: wide - 2 });
  });
}

const textWidth = (text, size) => (text.length + (text[0] === "W" ? RULES.letter : 0)) * RULES.digit * size + RULES.room[+(text.length > 1)];   // with its space; two and more characters need more at their sides

function numberSize(text, wide, tall) {   // 0 if the text does not fit
  const room = textWidth(text, 0), [least, most] = RULES.sizes, size = between(Math.floor(Math.min(tall * RULES.high, wide * RULES.wide, (wide - room) / (textWidth(text, 1) - room))), least, most);
  return tall >= RULES.lowest && textWidth(text, size) <= wide ? size : 0;
}

function usualOf(chart) {   // by kind, boxes and parts of slots apart, of each device with such boxes the median seconds, and the seconds that a tenth of them are shorter than
  const found = new Map();
  for (let device = 0; device < chart.devices; device++) for (let [box, end] = chart.boxesOf(device); box < end; box++) {
    const parts = chart.column.length[box] ? chart.parts(box) : [];
    for (const [letter] of parts) {
      const name = `${letter}${parts.length}`, rows = found.get(name) || found.set(name, []).get(name);
      (rows[device] ||= []).push(chart.duration(box));
    }
  }
  for (const [name, rows] of found) found.set(name, rows.map((lengths) => { const usual = lengths.sort((one, other) => one - other)[lengths.length >> 1]; return [usual, nearly(lengths[Math.floor(lengths.length / 10)], usual)]; }));
  return found;
}

const nearly = (length, usual) => (Math.abs(length - usual) < RULES.nearly * usual ? usual : length);   // a length that is nearly usual counts as usual

function boxTall(chart) {   // pixels of a box in the mean row: rows of whole pixels differ by one
  const [top, bottom] = isLow(chart) ? [0, 1] : chart.band;
  return (bottom - top) * (rowHeight(chart) - gapOf(chart));
}

function numbersOf(chart, letters = lettered) {   // the number of a box, and its size, 0 without one (Boxes.numbers): a kind has numbers if every device whose boxes are half as long as the longest, and most devices, hold the longest number, after the letter of its kind if `letters`
  const tall = boxTall(chart), usual = chart.usual ??= usualOf(chart), longest = "0".repeat(chart.digits), widest = chart.kinds.some(({ name }) => name === "W") && "W";
  const marks = isMarked(chart) ? (chart.locals > 1) + !!chart.column.reverse : 0, few = new Set();
  const sizeOf = (name, wide) => (few.has(name) ? 0 : numberSize((letters ? widest || name[0] : "") + longest, wide, tall / name[1] - marks ** 2));
  let count = 0;
  for (const [name, rows] of usual) {
    const own = rows.flatMap(([median]) => pixels(median)), most = Math.max(...own), holds = own.filter((wide) => sizeOf(name, wide));
    if (2 * holds.length < own.length || own.some((wide) => 2 * wide >= most && !holds.includes(wide))) few.add(name); else count += holds.length;
  }
  const least = Math.min(...[...usual].flatMap(([name, rows]) => rows.flatMap(([, short]) => sizeOf(name, pixels(short)) || [])));
  const of = (name, device, wide, text) => ({ text: (letters ? name[0] : "") + text, size: sizeOf(name, nearly(wide, pixels(usual.get(name)[device][0]))) >= smallest ? smallest : 0 });
  return { of, tall, least, count };
}

const numberOf = (chart, microbatch) => (chart.slices > 1 ? `${Math.floor(microbatch / chart.slices)}.${microbatch % chart.slices}` : String(microbatch));

function drawLane(chart, place, device, part) {
  const { top, tall } = bandOf(chart, place, device, part.lane), [from, to] = chart.spansOf(part, device);
  for (let item = from, before = -Infinity; item < to; item++) {
    const start = chart.start(item), x = toX(start), wide = pixels(chart.end(item) - start), alone = wide < 2 && Math.abs(pixels(start - before)) > 2;
    before = chart.end(item);
    if (x > width || x + wide < left()) continue;
    context.fillStyle = theme.lanes[part.sort];
    if (alone) context.fillRect(Math.round(x + wide / 2 - 0.75), top, 1.5, tall); else context.fillRect(x, top, wide, tall);   // a short span alone has a pixel of its colour
    const text = part.numbered || part.staged ? nameOf(chart, item).match(part.numbered ? /\d*$/ : /^\d*/)[0] : "";
    if (tall >= RULES.lowest && text.length * RULES.sizes[0] * RULES.digit + RULES.room[0] <= wide) write(text, x + wide / 2, top + tall / 2 + 3.2, { size: RULES.sizes[0], align: "center", colour: inkOn(theme.lanes[part.sort]) });
  }
}

function drawOutline(chart, place, item) {
  if (chart.isTransfer(item)) return;
  const { top, tall } = bandOf(chart, place, chart.deviceOf(item), chart.isBox(item) ? chart.band : chart.partOf(item).lane);
  const x = toX(chart.start(item)), box = Math.max(pixels(chart.duration(item)), 2), around = tall > 20 ? 0 : 2;
  for (const [colour, wide, out] of item === chart.critical?.[step] ? [[theme.halo, 7, around], [theme.text, 3, around]] : [[theme.text, 2, 1]]) { pen(colour, wide); context.strokeRect(x - out, top - out, box + 2 * out, tall + 2 * out); }   // around the box, so that its number is read; the step differs
}

function drawNumbers({ chart, title }) {   // name, step, difference, idle, peak of limit: columns that `drawCaptions` heads
  const y = title + 16, ink = chart.dimmed ? theme.quiet : theme.text, bare = { colour: ink, size: 13 };   // quiet: of the picture before
  const [step, within, differs, idle, peak, runs] = columns(), fits = fitOf(chart), own = { ...bare, align: "right" };
  const words = numbersIn(chart);
  const room = step - write(words[0], step, y, { ...own, bold: true }) - EDGE - 6;
  let text = chart.short;
  const size = [13, 12, 11].find((one) => measure(text) * one / 13 <= room) ?? 11;
  context.font = font(size, true);
  for (let keep = text.length - 6, whole = text; keep > 0 && measure(text) > room; keep--) text = `${whole.slice(0, keep)}…${whole.slice(-5)}`;   // the ends of names tell them apart
  write(text, EDGE, y, { bold: true, colour: theme.text, size });
  write(words[1], within, y, own);
  const is_quiet = ["base", "=", "at bound"].includes(words[2]);
  write(words[2], differs, y, { ...own, bold: !is_quiet, colour: is_quiet ? theme.quiet : ink });
  if (runsHead()) write(chart.runs, runs, y, { size: 12 });
  write(words[3], idle, y, own);
  for (const [text, x, align] of [[words[4], peak, "right"], [fits, peak + 6, "left"]]) write(text, x, y, { ...bare, align, bold: !!fits, colour: fits ? theme.limit : ink });
}

const fitOf = ({ waiting, faulty, memory: { peaks, fullest, capacity, device } }, peak = peaks[fullest]) => (waiting || faulty || !capacity || peak <= capacity * (1 + 1e-6) ? "" : peak <= device ? "tight" : "over");   // whether a device needs more than is usable, or than it has

const numbersIn = (chart) => (chart.waiting || chart.faulty ? headings().map((head) => head && "—") : lastIn(chart));
const lastIn = (chart) => [seconds1(chart.step), isNarrow() ? "" : intervalOf(chart), differenceOf(chart), idleOf(chart), peakOf(chart)];   // of its picture
const headings = () => ["step", !isNarrow() && charts.some(({ interval }) => interval) ? "90 % of real steps" : "", against(), "idle", peakHead()].map((head, at) => (steady() && at % 3 === 0 ? `${head}, steady` : head));
const intervalOf = ({ interval }, [factor, symbol] = unitFor(until)) => (interval ? `${interval.map((one) => precise(one * factor, 2)).join(" to ")} ${symbol}` : "");   // of a real step, such as 4.4 to 12 s

function columns() {   // right ends of the columns of numbers and of a word on memory, as wide as their texts; on phones from the right, so that names have space
  const gap = isNarrow() ? 10 : 20, heads = headings().map(widthOf), texts = charts.map((chart) => (isReal(chart) ? lastIn(chart) : numbersIn(chart)));   // columns stay where they are while numbers are away
  context.font = font(13, true);
  const wide = heads.map((head, at) => Math.max(at ? head : 62, head, ...texts.map((row) => measure(row[at]))) + (head && gap));
  const names = charts.map(({ short }) => measure(short)), all = sumOf(wide) + (wide[5] = Math.max(0, ...charts.map((chart) => fitOf(chart)).filter(Boolean).map((fits) => measure(fits) + 8)));
  if (runsHead()) wide[5] += gap, wide[6] = Math.max(...[runsHead(), ...charts.map(({ runs }) => runs)].map(widthOf)) * 12 / 11;
  let end = phone() ? width - EDGE - all : Math.min(EDGE + Math.max(...names, 0), width * 0.3);
  return wide.map((one) => (end += one));
}

const runsHead = () => (options.fragment && !phone() && charts.every(({ runs }) => runs) ? "runs in" : "");   // elsewhere other things stand there

function captionAt(x) {   // what a column of numbers is
  const at = columns().findIndex((end, at, ends) => x <= end + 4 && x > (ends[at - 1] ?? end - 80)), name = charts.length > 1 && baseChart().short, { unit } = charts[0]?.memory || {};
  if (x > width - right() && on.has("ledger") && !phone()) return ["idle by device", "each device's idle time by cause, all on one scale"];
  const texts = [[`time of one training step${steady() ? " in the steady part" : ""}`], ["nine of ten lie in this range,", "as published runs of such models have shown"], name ? [`the step against that of ${name}`, `=: less than ${100 * RULES.same} % apart`] : ["the step against a lower bound:", "in any order its actions take at least that long"], [`idle time of all devices, as a part of the ${steady() ? "steady part" : "step"}`],
    unit === "bytes" ? ["the most memory that a device needs, of the usable"] : ["microbatches whose activations the fullest device holds at once,", "each for its share of the model"], , ["frameworks that have this schedule"]][at];
  return texts && [headings()[at] ?? runsHead(), ...texts];
}

const steady = () => charts.some(({ begins }) => begins?.size);   // several iterations: step and idle time are of the steady part
const widthOf = (text) => { context.font = font(11); return measure(text); };

function against() {   // the heading of differences, which names the base
  if (charts.length < 2) return charts[0]?.bound ? "vs bound" : "";
  const name = `vs ${baseChart().short}`;
  return widthOf(name) > 84 ? "vs base" : name;
}

const baseChart = () => (charts[base]?.faulty ? charts.find(({ step, faulty }) => step && !faulty) : null) ?? charts[base];   // the chosen one, also while it is simulated for the first time, or the first with numbers

function differenceOf(chart) {
  if (charts.length === 1) return !chart.bound ? "" : Math.abs(chart.step / chart.bound - 1) < 5e-4 ? "at bound" : signed(chart.step / chart.bound - 1);
  const first = baseChart(), change = chart.step / first.step - 1;
  return chart === first ? "base" : !first.step || chart.sizes !== first.sizes ? "—" : Math.abs(change) < RULES.same && (!change || chart.schedule !== first.schedule) ? "=" : signed(change);
}

const scaleOf = ({ memory }) => (memory.unit === "bytes" ? byteUnit(memory.capacity || memory.most) : [1, "act."]);
const levelOf = (chart, value) => precise(value / scaleOf(chart)[0], ...(chart.memory.unit === "bytes" ? [3] : [4, 1]));

const idleOf = ({ idle, filled }) => (filled === undefined ? percent(idle) : `${(100 * idle).toFixed(1)} → ${percent(filled)}`);   // and with the work that fills it

const ofAll = (textOf) => { const texts = new Set(charts.filter(isReal).map(textOf)); return texts.size === 1 ? [...texts][0] : ""; };   // a text that is the same for all charts
const unitOf = (chart) => scaleOf(chart)[1], limitOf = (chart) => (chart.memory.capacity ? ` of ${levelOf(chart, chart.memory.capacity)}` : ""), sharedLimit = () => charts.length > 1 && ofAll(limitOf);
const peakHead = () => { const unit = ofAll(unitOf), limit = sharedLimit(); return `peak${limit || (unit && ",")}${limit && phone() && unit === "act." ? "" : ` ${unit}`}`; };
const peakOf = (chart, peak = chart.memory.peaks[chart.memory.fullest]) => `${levelOf(chart, peak)}${sharedLimit() ? "" : limitOf(chart)}${ofAll(unitOf) ? "" : ` ${unitOf(chart)}`}`;   // without what the heading has

function drawCaptions() {
  fillBox(theme.paper, 0, 0, width, CAPS - 6);
  headings().forEach((text, at) => write(text, columns()[at], 13, { align: "right" }));
  write(runsHead(), columns()[5], 13);
  if (on.has("ledger") && !phone() && charts.some(isReal)) write(`${steady() ? "idle, all steps" : "idle by device"}${places().some(hasShares) ? "" : `, longest bar ${percent(mostIdle())}`}`, width - 8, 13, { align: "right" });
  const whole = contentHeight(), seen = places().filter(inSight).length;
  if (whole - pane() < 2) return;
  if (seen < charts.length) write(`${seen} of ${charts.length}${phone() ? "" : " schedules"} ↕`, EDGE, 13, { colour: theme.text });
  fillBox(theme.text, width - 4, CAPS + view.y / whole * pane(), 3, pane() / whole * pane());   // which part of the schedules is seen
}

const inSight = (place) => place.end > CAPS + HEAD && place.rows + 12 < CAPS + pane();

const label = (text, x, y, style) => { if (y < CAPS + pane() - 3) write(text, x, y, style); };   // not cut by the axis

const nameAt = (chart, device, few = true) => chart.towers?.[device] || `${few ? "dev. " : ""}${device}`;
function drawNames({ chart, title, rows, end, first: origin, row, hidden }, first, last) {   // device numbers at 1, 2, 4 ... steps
  const few = !phone() && chart.devices <= 8 && row > 20, slow = Object.keys(chart.slow || {}).map(Number);   // stragglers
  const yOf = (device) => Math.max(origin + (device + 0.5) * row - gapOf(chart) / 2, origin + (device ? 0 : 6));
  let every = 1, used = -Infinity;
  while (yOf(every) - yOf(0) < 14) every *= 2;
  if (every * row < 24 && chart.devices > 16) every *= 2;
  const isSeen = (device) => (hidden ? yOf(device) > rows + 6 && yOf(device) < end - 6 : yOf(device) > title + HEAD);
  for (let device = Math.ceil(first / every) * every; device < last; device += every) if (!slow.some((one) => Math.abs(yOf(one) - yOf(device)) < 12) && (isSeen(device) || !device))
    label(nameAt(chart, device, few), left() - 6, yOf(device), { size: phone() ? 10 : 11, align: "right", line: "middle" });
  for (const device of slow) if (device >= first && device < last && yOf(device) - used >= 12) write(`▸${few ? " " : ""}${nameAt(chart, device, few)}`, left() - 6, used = yOf(device), { size: phone() ? 10 : 11, bold: true, align: "right", line: "middle", colour: theme.text });
}

const hasShares = ({ chart, row }) => chart.devices <= 8 && row >= 16, mostIdle = () => Math.max(...charts.flatMap((chart) => upTo(chart.devices).map((device) => chart.idleShare(device))));
function drawCauses(place, first, last) {   // idle time by cause beside each row, on one scale for all schedules
  const { chart, row } = place, ratio = ratioOf(), x1 = rightEdge() + 16, wide = right() - 30, words = hasShares(place), most = mostIdle() * (words ? 1.75 : 1.02) || 1;
  for (let device = first; device < last; device++) {
    const { begin, end, top, tall, whole } = bandOf(chart, place, device), whole_row = top + tall === begin + whole;
    const [y1, y2] = [top, whole_row ? end - gapOf(chart) : top + tall].map((y) => (row < 6 ? Math.round(y * ratio) / ratio : y));   // as the row's boxes; low rows touch
    let x = x1;
    for (const cause of CAUSES) {
      const part = (chart.ledger[cause]?.[device] || 0) / (chart.makespan || 1) / most * wide;
      if (part <= 0) continue;
      fillBox(theme.causes[cause], x, y1, part, y2 - y1);
      x += part;
    }
    if (words) write(percent(chart.idleShare(device)), x + 4, (y1 + y2) / 2, { line: "middle" });
  }
}
