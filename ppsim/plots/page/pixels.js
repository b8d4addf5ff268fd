// What a pixel shows: the mean of the kinds and of idle time in linear light, exact at any zoom (ppsim.plots.pixels).
const toLinear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
const light = (colour) => [1, 3, 5].map((at) => toLinear(parseInt(colour.slice(at, at + 2), 16) / 255));
const bright = (colour) => light(colour).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0), inkFor = (brightness) => theme.inks[+(brightness > 0.179)], inks = {};   // of text: what has more contrast
const inkOn = (colour) => (inks[colour] ??= inkFor(bright(colour)));
const ENCODED = new Uint8ClampedArray(4097).map((_, at) => {   // sRGB of linear light in steps of 1 / 4096
  const part = at / 4096;
  return Math.round(255 * (part <= 0.0031308 ? part * 12.92 : 1.055 * part ** (1 / 2.4) - 0.055));
});
const ratioOf = () => (paper ? 3 : window.devicePixelRatio || 1);   // columns of a pixel
const isFine = (chart) => isReal(chart) && boxWidth(chart) * ratioOf() < RULES.sharp;   // its actions are too narrow to be told apart
const isMixed = (chart) => isFine(chart) || (isReal(chart) && !gapOf(chart) && pixels(chart.period) <= RULES.period && charts.some(isFine));   // one manner a picture
const footOf = () => between(4.5 - Math.min(...charts.filter(isReal).map(boxWidth)) * ratioOf(), 1, 3);   // columns that a column takes its mean over, so that boxes as wide as a column do not beat

function summed(chart, half) {   // running sums of light above idle time, before each box: 3 a box; a slot's half has the kind of its part, half 2 the mean of both
  const key = `${themeName} ${half}`;
  if (chart.sums?.[half]?.key === key) return chart.sums[half];
  const { length, kind } = chart.column, before = new Float64Array(3 * (chart.boxes + 1)), idle = light(theme.idle);
  const lights = chart.kinds.map(({ name }) => light(theme.kinds[name]).map((part, channel) => part - idle[channel]));
  for (let box = 0; box < chart.boxes; box++) {
    let add = lights[kind[box]];
    const what = chart.kinds[kind[box]];
    if (what.slot) {
      const letters = chart.column.forward_first[box] ? "FB" : "BF", [one, other] = [...(letters[half] ? letters[half].repeat(2) : letters)].map((letter) => light(theme.kinds[letter]));
      add = one.map((part, channel) => (part + other[channel]) / 2 - idle[channel]);
    }
    for (let channel = 0; channel < 3; channel++) before[3 * box + 3 + channel] = before[3 * box + channel] + length[box] * add[channel];
  }
  (chart.sums ||= [])[half] = { key, before };
  return chart.sums[half];
}

const isFlat = (chart) => isMixed(chart) && pixels(chart.period) <= RULES.period;   // its mixtures have one colour
function columnsOf(finish, cols, from, to, foot) {   // ticks of each column's footprint of `foot` columns, its centre and half of it, cut at both ends of the step alike; those of a column
  const centre = new Float64Array(cols), half = new Float64Array(cols), own = new Float64Array(cols), column = (to - from) / cols;
  for (let at = 0; at < cols; at++) {
    centre[at] = from + (at + 0.5) * column;
    half[at] = centre[at] < finish ? Math.min(foot * column / 2, Math.max(column / 2, Math.min(centre[at], finish - centre[at]))) : column / 2;
  }
  return { centre, half, own, column, foot: foot * column };
}

const WINDOWS = [-4 / 9, 0, 4 / 9], REACH = 13 / 9;   // of half a window
function windowsOf(chart, device, spans, finish) {   // the windows whose mean the columns of a device show: where actions mix, three of a period, `own` apart, so that mixtures are flat (ppsim.plots.pixels.windows)
  const all = chart.mixtures?.[device];   // borders of mixtures and of what lies between them, and then their periods, 0: none
  if (!isFlat(chart) || !all) return spans;
  const { foot } = spans, count = (all.length - 1) / 2, centre = spans.centre.slice(), half = spans.half.slice(), own = spans.own.slice();
  for (let at = 0, next = 0; at < centre.length; at++) {
    const middle = centre[at], reach = half[at];
    while (next + 1 < count && all[next + 1] <= middle) next++;
    const begin = all[next], end = all[next + 1], period = all[count + 1 + next], room = (end - begin) / 2 / REACH;
    if (room <= reach || middle + reach > finish) continue;
    const wide = Math.min(Math.max(period ? period / 2 * Math.ceil(foot / period - 0.01) : foot / 2, reach), room), apart = REACH * (wide + (chart.even && period ? Math.min(3 * wide, (room - wide) / 2) : 0));
    half[at] = own[at] = wide; centre[at] = between(middle, begin + apart, end - apart);
  }
  return { centre, half, own };
}

function rowLight(chart, device, part, windows, finish, out) {   // the light of a row's columns, the mean over windows
  out.fill(0);
  for (const shift of WINDOWS) addLight(chart, device, part, windows, shift, finish, out);
}

function addLight(chart, device, part, { centre, half, own }, shift, finish, out) {
  const [begin, end] = chart.boxesOf(device), { start, length } = chart.column, { before } = summed(chart, part);
  const idle = light(theme.idle), paper = light(theme.paper), steps = stepsOf(chart, device);
  const done = (box, time) => (box >= end || time <= start[box] ? 0 : (time - start[box]) / (length[box] || 1));   // part of a box before a time; `box` is the first that ends after it
  const look = (at, part) => before[at] + (part && part * (before[at + 3] - before[at]));   // light above idle time
  let low = firstWhere(begin, end, (box) => start[box] + length[box] > centre[0] + shift * own[0] - half[0]), high = low;
  for (let column = 0, at = 0; column < centre.length; column++) {
    if (shift && !own[column]) { at += 3; continue; }
    const from = centre[column] + shift * own[column] - half[column], to = from + 2 * half[column], wide = to - from, weight = own[column] ? 1 / 3 : 1;
    while (low < end && start[low] + length[low] <= from) low++;
    while (high < end && start[high] + length[high] <= to) high++;
    const inside = Math.max(Math.min(to, finish) - Math.max(from, 0), 0) / wide, one = done(low, from), other = done(high, to);
    for (let channel = 0; channel < 3; channel++) {
      let mean = inside * idle[channel] + (1 - inside) * paper[channel] + (look(3 * high + channel, other) - look(3 * low + channel, one)) / wide;
      for (const [a, b, colour] of steps) mean += Math.max(Math.min(to, b) - Math.max(from, a), 0) / wide * (colour[channel] - idle[channel]);
      out[at++] += weight * mean;
    }
  }
}

function stepsOf(chart, device) {   // optimizer steps, which are among the actions: [begin, end, light]
  const found = [];
  for (const part of chart.lanes) {
    if (part.banded) continue;
    const [from, to] = chart.spansOf(part, device), colour = light(theme.lanes[part.sort]);
    for (let item = from; item < to; item++) found.push([chart.startTicks(item), chart.endTicks(item), colour]);
  }
  return found;
}

let sheet = null, mean = new Float32Array(0);   // kept from frame to frame
function footprint(place, x, y) {   // what the pixel at a point is the mean of: its devices, its times, and the share of each kind and of idle time
  const { chart, first: top, row } = place, [first, last] = visible(place), ratio = ratioOf(), { tick } = chart;
  const cols = Math.round(innerWidth() * ratio), column = between(Math.floor((x - left()) * ratio), 0, cols - 1);
  const finish = chart.makespan / tick, wide = (view.t1 - view.t0) / tick / cols, from = view.t0 / tick + column * wide, spans = columnsOf(finish, 1, from, from + wide, footOf()), ends = [];
  const lines = row * ratio < 6 ? Math.max(Math.round((last - first) * row * ratio), 1) : 0, step = (last - first) / (lines || last - first), line = lines && between(Math.floor(y * ratio) - Math.round((top + first * row) * ratio), 0, lines - 1);
  const [above, below] = lines ? [line * step, (line + 1) * step] : [Math.floor((y - top) / row) - first, Math.floor((y - top) / row) - first + 1], found = new Map();
  for (let device = Math.floor(above); device < below; device++) {
    const { centre: [centre], half: [half], own: [own] } = windowsOf(chart, first + device, spans, finish), shifts = own ? WINDOWS : [0];
    for (const middle of shifts.map((shift) => centre + shift * own)) {
      const [from, to] = [middle - half, middle + half].map((time) => time * tick), weight = (Math.min(below, device + 1) - Math.max(above, device)) / (below - above) / (to - from);
      for (const [title, seconds] of sharesAt(chart, first + device, from, to)) found.set(title, (found.get(title) || 0) + weight * seconds);
      ends.push(from, to);
    }
  }
  return { devices: [first + Math.floor(above), first + Math.ceil(below - 1e-9) - 1], from: Math.max(Math.min(...ends), 0), to: Math.min(Math.max(...ends), chart.makespan), shares: found };
}

function raster(chart, first, last, lines, cols) {   // a canvas of the devices from `first` to before `last`: a line for each part of a row, or `lines` that are means by area
  const count = last - first, slots = chart.kinds.some((kind) => kind.slot), halves = slots && !isLow(chart) ? 2 : 1, finish = chart.makespan / chart.tick;
  const from = view.t0 / chart.tick, to = view.t1 / chart.tick, rows = count * halves;
  const spans = columnsOf(finish, cols, from, to, footOf());
  const tall = lines || rows, step = rows / tall, row = new Float64Array(3 * cols);
  if (mean.length < 3 * cols * tall) mean = new Float32Array(3 * cols * tall); else mean.fill(0);
  for (let line = 0; line < rows; line++) {
    const device = first + Math.floor(line / halves);
    rowLight(chart, device, halves === 1 && slots ? 2 : line % halves, windowsOf(chart, device, spans, finish), finish, row);
    for (let y = Math.floor(line / step); y < tall && y * step < line + 1; y++) {
      const part = (Math.min((y + 1) * step, line + 1) - Math.max(y * step, line)) / step;
      if (part > 1e-9) for (let at = 0, to = 3 * cols * y; at < row.length; at++, to++) mean[to] += part * row[at];
    }
  }
  const image = new ImageData(cols, tall), colours = new Uint32Array(image.data.buffer), code = (part) => ENCODED[Math.min((part * 4096 + 0.5) | 0, 4096)];
  for (let at = 0, to = 0; to < cols * tall; at += 3, to++) colours[to] = code(mean[at]) | code(mean[at + 1]) << 8 | code(mean[at + 2]) << 16 | 0xff << 24;
  sheet ||= document.createElement("canvas");
  sheet.width = cols; sheet.height = tall;
  sheet.getContext("2d").putImageData(image, 0, 0);
  return { sheet, halves };
}

function sharesAt(chart, device, from, to) {   // seconds of a device in each kind between two times, by title, and idle time
  const first = chart.firstEndingAfter(device, from), last = chart.firstStartingAfter(device, to), found = new Map();
  let busy = 0;
  for (let box = first; box < last; box++) {
    const part = Math.max(Math.min(chart.end(box), to) - Math.max(chart.start(box), from), 0), { title } = chart.kindOf(box);
    found.set(title, (found.get(title) || 0) + part);
    busy += part;
  }
  const filled = chart.fillsBetween(device, from, to);
  if (filled) found.set(chart.lanes.find(({ sort }) => sort === "fills").title, filled);
  found.set("idle", Math.max(Math.min(to, chart.makespan) - Math.max(from, 0) - busy - filled, 0));
  return found;
}
