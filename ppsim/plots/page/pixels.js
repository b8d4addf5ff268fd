// What a pixel shows: the mean of the kinds and of idle time in linear light, exact at any zoom (ppsim.plots.pixels).
const toLinear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
const light = (colour) => [1, 3, 5].map((at) => toLinear(parseInt(colour.slice(at, at + 2), 16) / 255));
const ENCODED = new Uint8ClampedArray(4097).map((_, at) => {   // sRGB of linear light in steps of 1 / 4096
  const part = at / 4096;
  return Math.round(255 * (part <= 0.0031308 ? part * 12.92 : 1.055 * part ** (1 / 2.4) - 0.055));
});
const ratioOf = () => (paper ? 3 : window.devicePixelRatio || 1);   // columns of a pixel
const isMixed = (chart) => isReal(chart) && boxWidth(chart) * ratioOf() < RULES.sharp;   // its actions are too narrow to be told apart
const middle = (numbers) => numbers.sort()[numbers.length >> 1] || 0, slotOf = (chart) => (chart.slot ??= middle(chart.column.length.filter((_, box) => chart.kindOf(box).slot)) * chart.tick);   // seconds of the median slot
function footOf() {   // columns that a column takes its mean over, so that boxes as wide as a column do not beat, at any density, nor slots whose halves mix
  const real = charts.filter(isReal), dense = ratioOf(), box = Math.min(...real.map(boxWidth)) * dense, slot = Math.max(...real.map((chart) => (isLow(chart) ? pixels(slotOf(chart)) * dense : 0)));
  return Math.max(between(4.5 - box, 1, 3), Math.min(7.5 * dense - 4.5 * box, 3 * dense), Math.min(slot, 10 * dense - slot));   // wide slots need none
}

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

function columnsOf(finish, cols, from, to, foot) {   // first and last tick of each column's footprint of `foot` columns, cut at both ends of the step alike
  const first = new Float64Array(cols), last = new Float64Array(cols), half = (to - from) / cols / 2;
  for (let column = 0; column < cols; column++) {
    const middle = from + (2 * column + 1) * half;
    const reach = middle < finish ? Math.min(foot * half, Math.max(half, Math.min(middle, finish - middle))) : half;
    first[column] = middle - reach; last[column] = middle + reach;
  }
  return { first, last };
}

function rowLight(chart, device, half, { first, last }, finish, out, at) {   // the light of a row's columns, from out[at] on
  const [begin, end] = chart.boxesOf(device), { start, length } = chart.column, { before } = summed(chart, half);
  const idle = light(theme.idle), paper = light(theme.paper), steps = stepsOf(chart, device);
  const done = (box, time) => (box >= end || time <= start[box] ? 0 : (time - start[box]) / (length[box] || 1));   // part of a box before a time; `box` is the first that ends after it
  const look = (at, part) => before[at] + (part && part * (before[at + 3] - before[at]));   // light above idle time
  const place = (time) => firstWhere(begin, end, (box) => start[box] + length[box] > time);
  let low = place(first[0] ?? 0), high = low;
  for (let column = 0; column < first.length; column++) {
    const from = first[column], to = last[column], wide = to - from;
    while (low < end && start[low] + length[low] <= from) low++;
    while (high < end && start[high] + length[high] <= to) high++;
    const inside = Math.max(Math.min(to, finish) - Math.max(from, 0), 0) / wide, one = done(low, from), other = done(high, to);
    for (let channel = 0; channel < 3; channel++) {
      let mean = inside * idle[channel] + (1 - inside) * paper[channel] + (look(3 * high + channel, other) - look(3 * low + channel, one)) / wide;
      for (const [a, b, colour] of steps) mean += Math.max(Math.min(to, b) - Math.max(from, a), 0) / wide * (colour[channel] - idle[channel]);
      out[at++] = mean;
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
  const spans = columnsOf(chart.makespan / tick, cols, view.t0 / tick, view.t1 / tick, footOf()), [from, to] = [spans.first[column] * tick, spans.last[column] * tick];
  const lines = row * ratio < 6 ? Math.max(Math.round((last - first) * row * ratio), 1) : 0, step = (last - first) / (lines || last - first), line = lines && between(Math.floor(y * ratio) - Math.round((top + first * row) * ratio), 0, lines - 1);
  const [above, below] = lines ? [line * step, (line + 1) * step] : [Math.floor((y - top) / row) - first, Math.floor((y - top) / row) - first + 1], found = new Map();
  for (let device = Math.floor(above); device < below; device++) {
    const weight = (Math.min(below, device + 1) - Math.max(above, device)) / (below - above) / (to - from);
    for (const [title, seconds] of sharesAt(chart, first + device, from, to)) found.set(title, (found.get(title) || 0) + weight * seconds);
  }
  return { devices: [first + Math.floor(above), first + Math.ceil(below - 1e-9) - 1], from: Math.max(from, 0), to: Math.min(to, chart.makespan), shares: found };
}

function raster(chart, first, last, lines, cols) {   // a canvas of the devices from `first` to before `last`: a line for each part of a row, or `lines` that are means by area
  const count = last - first, slots = chart.kinds.some((kind) => kind.slot), halves = slots && !isLow(chart) ? 2 : 1, finish = chart.makespan / chart.tick;
  const from = view.t0 / chart.tick, to = view.t1 / chart.tick, rows = count * halves;
  const spans = columnsOf(finish, cols, from, to, footOf());
  const tall = lines || rows, step = rows / tall, row = new Float64Array(3 * cols);
  if (mean.length < 3 * cols * tall) mean = new Float32Array(3 * cols * tall); else mean.fill(0);
  for (let line = 0; line < rows; line++) {
    rowLight(chart, first + Math.floor(line / halves), halves === 1 && slots ? 2 : line % halves, spans, finish, row, 0);
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
