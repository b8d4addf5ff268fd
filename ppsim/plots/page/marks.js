// Lines on and below the rows: transfers, paths, memory, the axis of time, a selected range, the line of play.
const lines = [];   // parts of transfers in the picture: { chart, item, ends: [x, y, x, y] }

const onlyWaited = () => charts.some((chart) => hasLines(chart) && pixels(chart.makespan) * chart.devices < RULES.crowded * chart.transfers);   // where not all fit, transfers that an idle device waits for: one manner a picture
function transfersIn(chart, first, last) {   // those drawn that these devices and their neighbours receive
  const seen = [], is_waited = onlyWaited();
  if (!hasLines(chart)) return seen;
  for (let device = Math.max(first - 1, 0); device < Math.min(last + 1, chart.devices); device++) {
    const [begin] = chart.boxesOf(device), end = chart.firstStartingAfter(device, view.t1);
    for (let box = chart.firstEndingAfter(device, view.t0); box < end; box++)
      for (let item = chart.inputs[box]; item && chart.isTransfer(item) && chart.target(item) === box; item++) if (!is_waited || (item === chart.before(box) && (box === begin || chart.endTicks(box - 1) < chart.startTicks(box)))) seen.push(item);
  }
  return seen;
}

function drawTransfers(chart, place, seen) {   // from the edge of the sender's row to that of the receiver's, those of backwards dashed; if rows lie between both, a stub next to each
  pen(theme.edge, 1);
  for (const item of seen) {
    const sender = chart.deviceOf(item), receiver = chart.deviceOf(chart.target(item)), from = bandOf(chart, place, sender), to = bandOf(chart, place, receiver), down = receiver > sender;
    const x1 = toX(chart.start(item)), y1 = from.top + (down ? from.tall : 0), x2 = toX(chart.end(item)), y2 = to.top + (down ? 0 : to.tall), part = (place.row - from.tall) / Math.abs(y2 - y1), across = part * (x2 - x1), along = part * (y2 - y1);
    context.setLineDash(sentBy(chart, item)[0] === "F" ? [] : [4, 2]);
    for (const ends of Math.abs(receiver - sender) < 2 ? [[x1, y1, x2, y2]] : [[x1, y1, x1 + across, y1 + along], [x2 - across, y2 - along, x2, y2]]) {
      context.beginPath(); context.moveTo(...ends.slice(0, 2)); context.lineTo(...ends.slice(2)); context.stroke();
      lines.push({ chart, item, ends });
    }
  }
  context.setLineDash([]);
}

function lineBehind(chart, place, item, [x1, y1, x2, y2]) {   // the line of a path along a transfer, behind the actions of devices between
  const to = chart.deviceOf(chart.target(item)), from = chart.deviceOf(item), by = Math.sign(to - from), across = (y) => x1 + (x2 - x1) * (y - y1) / (y2 - y1);
  for (let device = from + by; by && device !== to; device += by) {
    const { top, tall } = bandOf(chart, place, device), [enter, leave] = by > 0 ? [top, top + tall] : [top + tall, top];
    if (isLow(chart) || chart.boxAt(device, toTime(across(top + tall / 2))) === null) continue;
    context.lineTo(across(enter), enter); context.moveTo(across(leave), leave);
  }
  context.lineTo(x2, y2);
}

function drawPath(chart, place, chain) {   // a line with a halo on the lower edge of the boxes, joined between rows; one upright line where it turns back and forth after few pixels
  const runs = new Array(chain.length), rows = chain.map((item) => (chart.isTransfer(item) ? -1 : chart.deviceOf(item)));
  let turn = 0, stay = 0, way = 0;   // first item since the last turn, first item in the row, direction
  const close = (to) => { runs.fill(pixels(chart.end(chain[Math.max(to - 1, turn)]) - chart.start(chain[turn])), turn, to); turn = to; };
  rows.forEach((row, at) => {
    if (row < 0 || row === rows[stay]) return;
    if (Math.abs(row - rows[stay]) > 1) { close(at); stay = at; return; }   // to the other end, where it goes on in its direction
    const now = Math.sign(row - rows[stay]);
    if (way && now !== way) close(stay);
    way = now; stay = at;
  });
  close(chain.length);
  const edge = (device) => { const { top, tall } = bandOf(chart, place, device); return top + tall + Math.min(gapOf(chart) / 2, 2) * (chart.band[1] === 1); };   // below the row, so that marks of stages stay in sight
  context.lineJoin = context.lineCap = "round";
  for (const is_halo of [true, false]) {
    let x = null, y = 0, turns = null;   // turns: their begin, first row, and edges of all rows
    pen(is_halo ? theme.halo : theme.critical, (phone() || rowHeight(chart) < RULES.lowest_wide ? RULES.thin : RULES.path)[+is_halo]);
    context.beginPath();
    const close = () => { if (turns) { const [begin, from, top, bottom] = turns, middle = (begin + x) / 2; if (begin === toX(chart.start(chain[0]))) context.moveTo(begin, from); for (const point of [[middle, from], [middle, top], [middle, bottom], [middle, y], [x, y]]) context.lineTo(...point); } turns = null; };
    chain.forEach((item, at) => {
      const next = chain[at + 1] ?? item, moves = chart.isTransfer(item), from = moves && at ? y : edge(chart.deviceOf(item));   // transfers join the rows of the actions before and after them
      const end = !moves || (next !== item && chart.isTransfer(next)) ? from : edge(chart.deviceOf(next === item ? chart.target(item) : next)), begin = toX(chart.start(item));
      if (runs[at] < RULES.turn) turns = [turns?.[0] ?? begin, turns?.[1] ?? from, Math.min(turns?.[2] ?? from, from, end), Math.max(turns?.[3] ?? from, from, end)];
      else { close(); if (x === null) context.moveTo(begin, from); else context.lineTo(begin, from); if (moves) lineBehind(chart, place, item, [begin, from, toX(chart.end(item)), end]); else context.lineTo(toX(chart.end(item)), end); }
      x = toX(chart.end(item)); y = end;
    });
    close();
    context.stroke();
  }
  context.lineCap = "butt";
}

const levelsOf = (chart) => { const { fullest } = chart.memory; return [fullest, ...(rowHeight(chart) < 12 || chart.devices > 16 ? [] : upTo(chart.devices).filter((one) => one !== fullest))]; };   // the devices whose memory is drawn

const limitText = ({ memory: { capacity, device, unit } }) => (unit === "bytes" ? `usable ${device ? `${precise(capacity / byteUnit(device)[0], 3)} of ` : ""}${amount(device ?? capacity, unit)}` : `limit ${amount(capacity, "act.")}`);
function topLevel() {   // the highest level of memory that is shown: what is far over a limit is cut if others are not (ppsim.plots.memory_strip)
  const real = charts.filter(isReal).map(({ memory }) => memory), peaks = real.map(({ most }) => most), limit = Math.max(...real.map(({ capacity }) => capacity || 0)), top = Math.max(limit, ...peaks) || 1, cut = 1.5 * limit || Infinity;
  return top > 1.4 * cut && Math.min(...peaks) <= cut ? cut : top;
}
function drawMemory({ chart, memory: top, tall }) {   // the fullest device as an area, the others as thin lines, and the limit; what is over it has its colour
  const { most, capacity, unit } = chart.memory, all = topLevel();
  const [fullest, ...others] = levelsOf(chart), ceiling = all * 1.12, toY = (level) => top + tall - level / ceiling * tall;
  const x2 = rightEdge();
  fillBox(theme.grid, left(), top + tall, innerWidth(), 1);
  within(left() - (view.t0 <= 0), top - 4, x2 + 1, top + tall + 2, () => {
    for (const device of others) strokeLevel(chart, device, toY, theme.edge, 0.7, 0.45);
    for (let x = left(); capacity && x < x2; x += 9) fillBox(theme.limit, x, Math.floor(toY(capacity)), Math.min(6, x2 - x), 1);
    strokeLevel(chart, fullest, toY, theme.memory, 1.5);   // upon the dashes: what is just at the limit is not over it
    context.lineTo(toX(chart.makespan), toY(0)); context.lineTo(Math.max(toX(0), left() - 2), toY(0)); context.closePath();
    context.globalAlpha = 0.12; context.fillStyle = theme.memory; context.fill();
    context.globalAlpha = 1;
    if (most > capacity * (1 + 1e-9) && capacity) within(left(), top - 4, x2, toY(capacity) - 0.8, () => strokeLevel(chart, fullest, toY, theme.limit, 2));
    if (most > ceiling) write("↑", toX(peakTime(chart, fullest)), top + 8, { size: 14, align: "center", colour: theme.limit });
  });
  const [size, symbol] = unit === "bytes" ? byteUnit(capacity || all) : [1, "act."], tick = capacity || most, number = (level) => String(Number((level / size).toPrecision(phone() ? 2 + (unit !== "bytes") : 3 + (unit !== "bytes"))));
  for (const level of [tick, 0, tick / 2]) if (level === tick || (number(level).length <= number(tick).length && toY(0) - toY(tick) >= (level ? 40 : 12))) label(number(level), left() - 6, toY(level) + (level ? 3 : 0), { size: 10, align: "right" });
  if (phone()) return;
  label(`${symbol} of ${nameAt(chart, fullest)}`, x2 + 16, top + tall, { size: 10, widest: right() - 18 });
}

function peakTime(chart, device) {   // the middle between the first and the last time at which a device holds the most
  const [times, levels] = ["time", "level"].map((word) => chart.column[`memory ${word}`].subarray(...chart.column["memory offsets"].subarray(device, device + 2))), most = Math.max(...levels);
  return (times[levels.indexOf(most)] + times[levels.lastIndexOf(most)]) / 2 * chart.tick;
}

function strokeLevel(chart, device, toY, colour, wide, opacity = 1) {   // the step curve of a device's memory, which stays the context's path
  const { "memory offsets": offsets, "memory time": times, "memory level": levels } = chart.column;
  const scale = chart.memory.most / 65535, end = offsets[device + 1], begin = chart.pointAt(device, view.t0);
  context.beginPath();
  let y = toY(levels[begin] * scale);
  context.moveTo(Math.max(toX(times[begin] * chart.tick), left() - 2), y);
  for (let point = begin + 1; point < end && times[point - 1] * chart.tick <= view.t1; point++) {
    const x = toX(times[point] * chart.tick);
    context.lineTo(x, y);
    context.lineTo(x, y = toY(levels[point] * scale));
  }
  context.lineTo(toX(chart.makespan), y);
  pen(colour, wide); context.globalAlpha = opacity; context.stroke(); context.globalAlpha = 1;
}

function ticksOf() {   // 4 to 10 ticks at 1, 2 or 5 times a power of ten, in seconds, with their unit
  const [factor, symbol] = axisUnit(), span = (view.t1 - view.t0) * factor, raw = span / (phone() ? 5 : between(innerWidth() / 110, 4, 10));
  const power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((part) => part * power).find((one) => one >= raw * (1 - 1e-9)), ticks = [];
  for (let tick = Math.ceil(view.t0 * factor / step - 1e-9); tick * step <= view.t1 * factor * (1 + 1e-12); tick++) ticks.push(tick * step / factor);
  const digits = Math.max(-Math.floor(Math.log10(step) + 1e-9), 0);
  return { ticks, symbol, text: (tick) => fixed(Math.round(tick * factor * 1e9) / 1e9 + 0, digits) };
}

function drawAxis() {
  const y = axisTop(), x1 = left(), x2 = x1 + innerWidth();
  fillBox(theme.paper, 0, y, width, height - y);
  if (!charts.some(isReal)) return;
  context.globalAlpha = Math.max(...charts.filter(isReal).map(({ dimmed }) => dimmed || 1));   // nothing looks live if no schedule is
  const { ticks, symbol, text } = ticksOf(), size = phone() ? 10 : 11;
  fillBox(theme.edge, x1, y, x2 - x1, 1);
  for (const tick of ticks) fillBox(theme.edge, Math.round(toX(tick)), y, 1, 5);
  const times = playing ? [[onAxis(playing.time), toX(playing.time)]] : range ? [[rangeText(), (Math.max(toX(range[0]), x1) + Math.min(toX(range[1]), x2)) / 2]] : [];   // the line of play, or the selected range
  context.font = font(11, true);
  const marks = [...times, ...(pointed === null || paper ? [] : [[onAxis(pointed), toX(pointed)]])].map(([text, x]) => { const half = measure(text) / 2 + 5, middle = between(x, x1, width - half - 1); return [text, middle - half, middle + half]; }).filter(([, from, to], at, [[, begin, end]]) => !at || to < begin || from > end);   // over other numbers, the pointer's not over the range's
  const isFree = (begin, end) => marks.every(([, from, to]) => end < from - 5 || begin > to + 5);
  let end = 0; context.font = font(size);
  for (const tick of ticks) {   // on phones the last one has the unit
    const words = phone() && tick === ticks.at(-1) ? `${text(tick)} ${symbol}` : text(tick);
    const half = measure(words) / 2, x = Math.min(toX(tick), width - EDGE - half);
    if (isFree(x - half, end = x + half)) write(words, x, y + 7, { size, align: "center", line: "top" });
  }
  if (!phone() && isFree(end = Math.max(x2 + 16, end + 10), width)) write(`time (${symbol})`, end, y + 7, { size, line: "top" });
  context.fillStyle = theme.text;
  for (const place of places()) {
    const x = toX(place.chart.makespan);
    if (!endsInSight(place)) continue;
    context.beginPath(); context.moveTo(x, y); context.lineTo(x - 4, y - 6); context.lineTo(x + 4, y - 6); context.fill();
  }
  context.globalAlpha = 1;
  if (view.t0 > 0 || view.t1 < until) { context.fillRect(x1 + view.t0 / extent() * innerWidth(), y - 1, Math.max((view.t1 - view.t0) / extent() * innerWidth(), 4), 3); }
  for (const [text, from, to] of marks) { fillBox(theme.text, from, y + 6, to - from, 14); write(text, (from + to) / 2, y + 8, { bold: true, align: "center", line: "top", colour: theme.paper }); }
}

const endsInSight = (place) => isReal(place.chart) && !place.chart.faulty && inSight(place) && toX(place.chart.makespan) >= left() && toX(place.chart.makespan) <= rightEdge() + 1;

function rangeText() {   // begin and end of the selected range
  const [factor, symbol] = axisUnit(), digits = Math.max(1, 1 - Math.floor(Math.log10((range[1] - range[0]) * factor)));
  return range.map((time) => inUnit(time, [factor, symbol], digits)).join(" – ").replace(` ${symbol}`, "");
}

function drawOutside(from, to, alpha, ends) {   // what is outside of these seconds is paler, with a line at each end in sight
  const x1 = left(), x2 = rightEdge(), [a, b] = [from, to].map((time) => between(toX(time), x1, x2));
  for (const { rows, bottom } of places()) {
    for (const [begin, end] of [[x1, a], [b, x2 + 3]]) veil(alpha, begin, rows - 3, end - begin, bottom - rows + 1);
    for (const x of ends.map(toX)) if (x >= x1 && x <= x2) fillBox(theme.text, x - 0.75, rows - 2, 1.5, bottom - rows);
  }
}
