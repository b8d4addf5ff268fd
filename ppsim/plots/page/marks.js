// Marks on and around the rows: transfers, paths, names, idle time by cause, memory, and the time axis.
const MAX_LINES = 4000, MAX_CURVES = 16;   // more curves are one area from the emptiest to the fullest device
const lines = [];   // transfers in the picture: { chart, item, ends: [x, y, x, y] }
let tooManyLines = false;

function lineOf(chart, place, item) {   // [x, y, x, y] from the edge of the sender's row to that of the receiver's
  const sender = chart.deviceOf(item), receiver = chart.deviceOf(chart.target(item));
  const from = bandOf(chart, place, sender), to = bandOf(chart, place, receiver), down = receiver > sender;
  return [toX(chart.start(item)), from.top + (down ? from.tall : 0), toX(chart.end(item)), to.top + (down ? 0 : to.tall)];
}

function transfersIn(chart, first, last) {   // transfers that these devices and their neighbours receive; none if there are too many
  const seen = [];
  for (let device = Math.max(first - 1, 0); device < Math.min(last + 1, chart.devices); device++) {
    const end = chart.firstStartingAfter(device, view.t1);
    for (let box = chart.firstEndingAfter(device, view.t0); box < end; box++)
      for (let item = chart.inputs[box]; item && chart.isTransfer(item) && chart.target(item) === box; item++) seen.push(item);
    if (seen.length > MAX_LINES) { tooManyLines = true; return []; }
  }
  return seen;
}

const isFar = (chart, item) => Math.abs(chart.deviceOf(item) - chart.deviceOf(chart.target(item))) > 1;

function drawTransfers(chart, place, seen) {
  context.lineWidth = rowHeight() > 20 ? 1.6 : 1;
  for (const item of seen) {
    const ends = lineOf(chart, place, item), forward = chart.parts(chart.source(item))[0][0] === "F";
    context.strokeStyle = forward ? colours.forward : colours.backward;
    context.beginPath(); context.moveTo(ends[0], ends[1]); context.lineTo(ends[2], ends[3]); context.stroke();
    lines.push({ chart, item, ends });
  }
}

function middleOf(chart, place, item) {   // y of a path at the start and end of an item, below its label
  const middle = (device) => { const { top, tall } = bandOf(chart, place, device); return top + tall * (tall < 16 ? 0.5 : 0.84); };
  const device = chart.deviceOf(item);
  return [middle(device), middle(chart.isTransfer(item) ? chart.deviceOf(chart.target(item)) : device)];
}

function drawPath(chart, place, chain) {
  context.lineJoin = "round";
  for (const [colour, thick] of [[colours.ground, 5], [colours.critical, 2]]) {
    context.strokeStyle = colour; context.lineWidth = thick;
    context.beginPath();
    for (const item of chain) {
      const [from, to] = middleOf(chart, place, item);
      context.lineTo(toX(chart.start(item)), from);
      context.lineTo(toX(chart.end(item)), to);
    }
    context.stroke();
  }
}

function drawNamed(chart, box, band) {
  drawBox(chart, box, band);
  const from = Math.max(toX(chart.start(box)), LEFT), to = Math.min(toX(chart.end(box)), LEFT + innerWidth());
  if (band.tall >= 10) drawLabel(chart, { box, from, to }, band);
}

function drawFollowed(chart, place) {   // veils all items but the chosen one and those that it waited for
  context.globalAlpha = 0.6;
  context.fillStyle = colours.ground;
  context.fillRect(LEFT, place.rows, innerWidth(), place.end - place.rows);
  context.globalAlpha = 1;
  for (const item of followed) {
    if (!chart.isBox(item) || chart.end(item) < view.t0 || chart.start(item) > view.t1) continue;
    drawNamed(chart, item, bandOf(chart, place, chart.deviceOf(item)));
  }
  drawPath(chart, place, followed);
  if (chart.isTransfer(chosen.item)) return;
  const { top, tall } = bandOf(chart, place, chart.deviceOf(chosen.item)), x = toX(chart.start(chosen.item));
  const wide = toX(chart.end(chosen.item)) - x;
  if (chart.isBox(chosen.item)) drawNamed(chart, chosen.item, { top, tall });
  for (const [colour, thick] of [[colours.ground, 5], [colours.critical, 2.5]]) {
    context.strokeStyle = colour; context.lineWidth = thick;
    context.strokeRect(x - 1, top - 1, Math.max(wide, 1) + 1, tall + 2);
  }
}

function drawNames(chart, place, first, last) {   // device names at the left, their idle time at the right
  const row = rowHeight(), every = Math.max(2 ** Math.ceil(Math.log2(13 / row)), 1), edge = width - right() + 8;
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const named = Math.ceil(first / every) * every;
  for (let device = named; device < last; device += every) {
    const y = place.rows + (device + 0.5) * row;
    context.textAlign = "right";
    context.fillStyle = colours.ink;
    context.fillText(`device ${device}`, LEFT - 8, y);
    context.textAlign = "left";
    context.fillStyle = colours.quiet;
    context.fillText(percent(chart.idleShare(device)) + (device === named ? " idle" : ""), edge + (on.has("ledger") ? LEDGER + 4 : 0), y);
  }
  if (on.has("ledger")) for (let device = first; device < last; device++) drawCauses(chart, place, device, edge);
}

function drawCauses(chart, place, device, edge) {   // idle time by cause; the full width is the whole step
  const { top, tall } = bandOf(chart, place, device);
  context.fillStyle = colours.lane;
  context.fillRect(edge, top, LEDGER, tall);
  let x = edge;
  for (const [cause, idle] of Object.entries(chart.ledger)) {
    const wide = idle[device] / chart.makespan * LEDGER;
    context.fillStyle = chart.causes[cause][0];
    context.fillRect(x, top, wide, tall);
    context.strokeStyle = colours.outline; context.lineWidth = 0.7;
    if (wide > 2) context.strokeRect(x, top, wide, tall);
    x += wide;
  }
}

function drawMemory(chart, top) {   // a step curve per device, the fullest in colour with a label, and the capacity
  const { most, peaks, capacity, unit } = chart.memory, ceiling = Math.max(most, capacity || 0) * 1.08 || 1;
  const fullest = peaks.indexOf(Math.max(...peaks)), tooMuch = capacity && most > capacity;
  const toY = (level) => top + memoryHeight() - 4 - level / ceiling * (memoryHeight() - 8), bottom = toY(0);
  const colour = tooMuch ? colours.warning : colours.fullest;
  context.strokeStyle = colours.line; context.lineWidth = 1;
  context.strokeRect(LEFT + 0.5, top + 0.5, innerWidth() - 1, bottom - top);
  clipped(top, bottom + 2, () => {
    if (chart.devices > MAX_CURVES) fillLevels(chart, fullest, toY);
    else for (let device = 0; device < chart.devices; device++) if (device !== fullest) strokeLevels(chart, device, toY, colours.others, 0.8);
    strokeLevels(chart, fullest, toY, colour, 2);
    if (!capacity) return;
    context.setLineDash([6, 4]); context.strokeStyle = colours.ink; context.lineWidth = 1.2;
    context.beginPath(); context.moveTo(LEFT, toY(capacity)); context.lineTo(width, toY(capacity)); context.stroke();
    context.setLineDash([]);
  });
  const short = (value) => amount(value, unit === "bytes" ? unit : "").trim(), edge = width - right() + 6;
  const lines = [[toY(most), [`device ${fullest}: ${short(most)}`], colour]];   // [y, lines of text, colour], from the top
  if (capacity) lines[tooMuch ? "push" : "unshift"]([toY(capacity), [short(capacity), tooMuch ? "does not fit" : "one device"], colours.ink]);
  let free = top + 6, left = lines.flatMap(([, texts]) => texts).length;
  context.font = "11px system-ui, sans-serif"; context.textAlign = "left"; context.textBaseline = "middle";
  for (const [level, texts, ink] of lines) {
    context.fillStyle = ink;
    free = Math.max(free, Math.min(level, top + memoryHeight() + 8 - 13 * left));
    for (const text of texts) { context.fillText(text, edge, free); free += 13; left--; }
  }
  context.textAlign = "right"; context.fillStyle = colours.ink;
  context.fillText(unit === "bytes" ? "memory" : "activations", LEFT - 8, top + memoryHeight() / 2);
  context.fillText("0", LEFT - 8, Math.min(bottom, top + memoryHeight() - 5));
}

function strokeLevels(chart, device, toY, colour, thick) {
  const { "memory offsets": offsets, "memory time": times, "memory level": levels } = chart.column;
  const scale = chart.memory.most / 65535, end = offsets[device + 1];
  const begin = Math.max(firstWhere(offsets[device], end, (point) => times[point] * chart.tick > view.t0) - 1, offsets[device]);
  context.strokeStyle = colour; context.lineWidth = thick;
  context.beginPath();
  let y = toY(levels[begin] * scale);
  context.moveTo(toX(times[begin] * chart.tick), y);
  for (let point = begin + 1; point < end && times[point - 1] * chart.tick <= view.t1; point++) {
    const x = toX(times[point] * chart.tick);
    context.lineTo(x, y);
    context.lineTo(x, y = toY(levels[point] * scale));
  }
  context.lineTo(toX(chart.makespan), y);
  context.stroke();
}

function fillLevels(chart, fullest, toY) {   // the area of all curves except the fullest device's
  const { "memory offsets": offsets, "memory time": times, "memory level": levels } = chart.column, scale = chart.memory.most / 65535;
  const columns = Math.ceil(Math.min(toX(chart.makespan), LEFT + innerWidth()) - LEFT), least = new Float64Array(columns).fill(Infinity), most = new Float64Array(columns);
  for (let device = 0; device < chart.devices; device++) {
    if (device === fullest) continue;
    const end = offsets[device + 1];
    for (let point = firstWhere(offsets[device], end - 1, (one) => times[one + 1] * chart.tick > view.t0); point < end && times[point] * chart.tick <= view.t1; point++) {
      const last = point + 1 < end ? Math.min(toX(times[point + 1] * chart.tick) - LEFT, columns) : columns;
      for (let column = Math.max(Math.floor(toX(times[point] * chart.tick) - LEFT), 0); column < last; column++) {
        least[column] = Math.min(least[column], levels[point]);
        most[column] = Math.max(most[column], levels[point]);
      }
    }
  }
  context.fillStyle = colours.others;
  context.globalAlpha = 0.45;
  for (let column = 0; column < columns; column++)
    if (most[column] >= least[column]) context.fillRect(LEFT + column, toY(most[column] * scale), 1, Math.max(toY(least[column] * scale) - toY(most[column] * scale), 1));
  context.globalAlpha = 1;
}

function drawAxis() {
  const bottom = Math.min(TOP + pane(), TOP + contentHeight() - GAP + 2), edge = width - right();
  context.fillStyle = colours.ground;
  context.fillRect(0, bottom, width, height - bottom);
  context.fillStyle = context.strokeStyle = colours.ink; context.lineWidth = 1;
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "center"; context.textBaseline = "top";
  context.beginPath(); context.moveTo(LEFT, bottom + 0.5); context.lineTo(edge, bottom + 0.5);
  const [factor, symbol] = unitFor(view.t1 - view.t0);
  for (const stretch of stretches()) drawTicks(bottom, factor, ...stretch);
  context.stroke();
  if (borders) { drawBreaks(bottom, bottom + 36); drawPhases(bottom + 22); }
  const notes = [`time (${symbol})`, drawn.scale && "where actions are too narrow to show, a row is shaded by the part of its time that is busy",
    drawn.stacks && "where actions are too narrow to show, a row is the part of its time in each kind",
    on.has("transfers") && tooManyLines && "zoom in to see transfers"].filter(Boolean);
  while (notes.length > 1 && context.measureText(notes.join("; ")).width > 2 * Math.min((LEFT + edge) / 2, width - (LEFT + edge) / 2)) notes.splice(1, 1);
  context.fillText(notes.join("; "), (LEFT + edge) / 2, bottom + axis() - 18);
}

function drawTicks(bottom, factor, from, to) {   // round times; none near a break of the axis, at the end of a stretch
  const wide = toX(to) - toX(from), raw = (to - from) * factor / Math.max(wide / (borders ? 70 : 110), borders ? 1 : 2), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((part) => part * power).find((one) => one >= raw * (1 - 1e-9));
  const digits = Math.max(-Math.floor(Math.log10(step) + 1e-9), 0);
  for (let tick = Math.ceil(from * factor / step - 1e-9); tick * step <= to * factor * (1 + 1e-12); tick++) {
    const x = toX(tick * step / factor);
    if (to < view.t1 && toX(to) - x < 24) continue;
    context.moveTo(x, bottom); context.lineTo(x, bottom + 5);
    context.fillText((tick * step).toFixed(digits), x, bottom + 7);
  }
}

function drawBreaks(top, bottom) {   // lines at the changes of the time scale
  context.setLineDash([3, 3]);
  for (const x of borders.slice(1, 3).filter((time) => time > view.t0 && time < view.t1).map(toX))
    for (const [colour, thick] of [[colours.ground, 3], [colours.ink, 1.2]]) {
      context.strokeStyle = colour; context.lineWidth = thick;
      context.beginPath(); context.moveTo(x, top); context.lineTo(x, bottom); context.stroke();
    }
  context.setLineDash([]);
}

function drawPhases(y) {   // names of the parts between the breaks
  const names = ["fill", "steady part, time compressed", charts.length > 1 ? "from the first drain on" : "drain"];
  names.forEach((name, part) => {
    const from = Math.max(toX(borders[part]), LEFT), to = Math.min(toX(borders[part + 1]), LEFT + innerWidth());
    if (to - from > context.measureText(name).width) context.fillText(name, (from + to) / 2, y);
  });
}
