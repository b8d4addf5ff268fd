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
const sharpest = () => Math.max(RULES.sharp, RULES.narrow * ratioOf());   // columns of the narrowest boxes that are drawn singly
const isFine = (chart) => isReal(chart) && boxWidth(chart) * ratioOf() < sharpest();   // its actions are too narrow to be told apart
const isMixed = (chart) => isFine(chart) || (isReal(chart) && !gapOf(chart) && pixels(chart.period) <= RULES.period && charts.some(isFine));   // one manner a picture
const narrowest = () => Math.min(...charts.filter(isReal).map(boxWidth)) * ratioOf();   // columns of the picture's narrowest usual box

function sumsOf(chart, half) {   // ticks of each kind before each box, by name; a slot counts as the kind of its part, for half 2 as both by half, and for half 3 as itself
  if ((chart.sums ||= [])[half]) return chart.sums[half];
  const { length, kind, forward_first } = chart.column, found = {};
  for (const name of new Set(chart.kinds.flatMap(({ name, slot }) => (slot && half < 3 ? ["F", "B"] : name)))) {
    const sum = found[name] = new Float64Array(chart.boxes + 1);
    for (let box = 0; box < chart.boxes; box++) {
      const what = chart.kinds[kind[box]], is_first = !!forward_first?.[box] === (name === "F");
      sum[box + 1] = sum[box] + length[box] * (!what.slot || half === 3 ? what.name === name : !"FB".includes(name) ? 0 : half === 2 ? 0.5 : is_first === !half);
    }
  }
  return (chart.sums[half] = found);
}

const isFlat = (chart) => isMixed(chart) && pixels(chart.period) <= RULES.period;   // its mixtures have one colour
const flatness = (chart) => (!isFlat(chart) ? 0 : chart.even ? 1 - between(narrowest() - sharpest() + 1, 0, 1) ** 1.5 : 1);   // of that colour, the part: single actions appear upon it while one zooms in
function footprintsOf(chart, cols, from, to) {   // ticks at which each column's footprint begins and ends, cut at both ends of the step alike; with jitter, a period, doubled or halved to about three pixels
  const begin = new Float64Array(cols), end = new Float64Array(cols), column = (to - from) / cols, finish = chart.makespan / chart.tick, period = chart.period / chart.tick;
  const foot = isFlat(chart) && !chart.even ? period * 2 ** Math.round(Math.log2(3 * ratioOf() * column / period)) : between(4.5 - narrowest(), 1, 3) * column;   // so that boxes as wide as a column do not beat
  for (let at = 0; at < cols; at++) {
    const middle = from + (at + 0.5) * column, half = middle < finish ? Math.min(foot / 2, Math.max(column / 2, Math.min(middle, finish - middle))) : column / 2;
    begin[at] = middle - half; end[at] = middle + half;
  }
  return { begin, end, column };
}

function repeatsOf(chart) {   // ticks from the last begin of the same kind and stage on its device to each box, and from each box to the next one
  if (chart.repeats) return chart.repeats;
  const { start, kind, stage } = chart.column, period = chart.period / chart.tick, [before, after] = [0, 1].map(() => new Float64Array(chart.boxes));
  for (let device = 0; device < chart.devices; device++) {
    const last = new Map();
    for (let [box, end] = chart.boxesOf(device); box < end; box++) {
      const name = `${stage[box]} ${kind[box]}`, twin = last.get(name);
      if (twin !== undefined) before[box] = after[twin] = start[box] - start[twin];
      last.set(name, box);
    }
  }
  return (chart.repeats = [[before, after], [after, before]].map(([one, other]) => one.map((long, box) => [long, other[box]].find((long) => long > 0 && long < LONG * period) ?? period)));
}

function nearEnd({ column: { start, length } }, first, last, box, time) {   // the first box that ends after a time, looked for from a box on
  while (box > first && start[box - 1] + length[box - 1] > time) box--;
  while (box < last && start[box] + length[box] <= time) box++;
  return box;
}

const CHANGE = 0.097, LONG = 4;   // of a repetition: more ends a mixture; periods to an action that repeats none
function windowsOf(chart, device, footprints) {   // the windows whose mean the columns of a device show: where actions mix, a repetition before and after the middle of each (ppsim.plots.pixels.repetitions)
  const [first, last] = chart.boxesOf(device);
  if (!isFlat(chart) || !chart.even) return footprints;
  const { start, length } = chart.column, [before, after] = repeatsOf(chart), sums = Object.values(sumsOf(chart, 3)), steps = stepsOf(chart, device), finish = chart.makespan / chart.tick, period = chart.period / chart.tick, { column } = footprints;
  const begin = footprints.begin.slice(), end = footprints.end.slice(), parts = [[], [], [], [], []], places = parts.map(() => first);   // parts: ticks of each kind before five times
  const look = (time, at) => {
    const box = places[at] = nearEnd(chart, first, last, places[at], time), done = doneOf(chart, last, box, time);
    sums.forEach((sum, one) => { parts[at][one] = ticksBefore(sum, box, done); });
    steps.forEach(([from, to], one) => { parts[at][sums.length + one] = between(time, from, to); });
  };
  const change = (a, long, b, other) => {   // the largest difference between the parts from two of these times on, and of idle time
    let most = 0, idle = 0;
    parts[0].forEach((_, one) => { const differs = (parts[a + 1][one] - parts[a][one]) / long - (parts[b + 1][one] - parts[b][one]) / other; most = Math.max(most, Math.abs(differs)); idle += differs; });
    return Math.max(most, Math.abs(idle));
  };
  for (let at = 0, next = first; at < begin.length && end[at] <= finish; at++) {
    const middle = (begin[at] + end[at]) / 2;
    while (next < last && start[next] <= middle) next++;
    const [past, future] = [before[Math.max(next - 1, first)], after[Math.min(next, last - 1)]].map((long) => long * Math.ceil(column / long - 1e-6));
    [middle - 2 * past, middle - past, middle, middle + future, middle + 2 * future].forEach(look);
    const lower = middle < 2 * past ? 1 : change(0, past, 1, past), upper = middle + 2 * future > finish ? 1 : change(2, future, 3, future);
    const both = Math.max(lower, upper, change(1, past, 2, future)) < CHANGE, is_before = both || (lower < CHANGE && lower <= upper + 0.003), is_after = both || (upper < CHANGE && !is_before);
    const ended = next > first ? start[next - 1] + length[next - 1] : 0, busy = ended > middle || (next < last ? start[next] : Infinity) - ended < Math.max(end[at] - begin[at], period / 4), reach = Math.max(busy && Math.min(period / 2, middle, finish - middle), middle - begin[at]);
    begin[at] = is_before ? middle - past : is_after ? middle : middle - reach;
    end[at] = is_after ? middle + future : is_before ? middle : middle + reach;
  }
  return { begin, end };
}

const doneOf = ({ column: { start, length } }, end, box, time) => (box >= end || time <= start[box] ? 0 : (time - start[box]) / length[box]);   // part of a box before a time; `box` is the first that ends after it
const ticksBefore = (sum, box, done) => sum[box] + (done && done * (sum[box + 1] - sum[box]));
function rowLight(chart, device, part, windows, out) {   // the light of a row's columns
  const [begin, end] = chart.boxesOf(device), finish = chart.makespan / chart.tick, idle = light(theme.idle), paper = light(theme.paper), steps = stepsOf(chart, device);
  const kinds = Object.entries(sumsOf(chart, part)).map(([name, sum]) => [sum, light(theme.kinds[name])]);
  out.fill(0);
  for (let column = 0, low = begin, high = begin; column < windows.begin.length; column++) {
    const from = windows.begin[column], to = windows.end[column], wide = to - from;
    let rest = 1;   // idle
    const add = (share, colour) => { rest -= share; for (let channel = 0; channel < 3; channel++) out[3 * column + channel] += share * colour[channel]; };
    low = nearEnd(chart, begin, end, low, from); high = nearEnd(chart, begin, end, high, to);
    const one = doneOf(chart, end, low, from), other = doneOf(chart, end, high, to);
    add(1 - (between(to, 0, finish) - between(from, 0, finish)) / wide, paper);
    for (const [sum, colour] of kinds) add((ticksBefore(sum, high, other) - ticksBefore(sum, low, one)) / wide, colour);
    for (const [a, b, colour] of steps) add((between(to, a, b) - between(from, a, b)) / wide, colour);
    add(rest, idle);
  }
}

function gapsOf(chart, device, cols) {   // of each column the part that is paper: a pixel at the begin of each box and of work in idle time, as strong between two columns as in one
  const found = new Float64Array(cols), fills = chart.lanes.find(({ sort }) => sort === "fills"), wide = ratioOf() / 2;
  for (const [first, last] of [[chart.firstEndingAfter(device, view.t0), chart.firstStartingAfter(device, view.t1)], ...(fills ? [chart.spansOf(fills, device)] : [])]) for (let item = first; item < last; item++) {
    const box = pixels(chart.duration(item)), strength = Math.min(1, 0.1 * box) * between((box - 3) / 3, 0, 1), middle = (toX(chart.start(item)) - left()) * ratioOf();
    if (strength) for (let at = Math.max(Math.floor(middle - wide), 0); at < Math.min(middle + wide, cols); at++) found[at] += strength * (Math.min(middle + wide, at + 1) - Math.max(middle - wide, at)) * (1 - found[at]);
  }
  return found;
}

const stepsOf = (chart, device) => chart.lanes.filter(({ banded }) => !banded).flatMap((part) => {   // optimizer steps, which are among the actions: [begin, end, light]
  const [from, to] = chart.spansOf(part, device), colour = light(theme.lanes[part.sort]);
  return upTo(to - from).map((at) => [chart.startTicks(from + at), chart.endTicks(from + at), colour]);
});

let sheet = null, mean = new Float32Array(0);   // kept from frame to frame
function footprint(place, x, y) {   // what the pixel at a point is the mean of: its devices, its times, and the share of each kind and of idle time
  const { chart, first: top, row } = place, [first, last] = visible(place), ratio = ratioOf(), { tick } = chart;
  const cols = Math.round(innerWidth() * ratio), column = between(Math.floor((x - left()) * ratio), 0, cols - 1);
  const wide = (view.t1 - view.t0) / tick / cols, first_tick = view.t0 / tick + column * wide, own = footprintsOf(chart, 1, first_tick, first_tick + wide), ends = [];
  const lines = row * ratio < 6 ? Math.max(Math.round((last - first) * row * ratio), 1) : 0, step = (last - first) / (lines || last - first), line = lines && between(Math.floor(y * ratio) - Math.round((top + first * row) * ratio), 0, lines - 1);
  const [above, below] = lines ? [line * step, (line + 1) * step] : [Math.floor((y - top) / row) - first, Math.floor((y - top) / row) - first + 1], found = new Map();
  for (let device = Math.floor(above); device < below; device++) {
    const { begin: [begin], end: [end] } = windowsOf(chart, first + device, own), from = begin * tick, to = end * tick;
    const weight = (Math.min(below, device + 1) - Math.max(above, device)) / (below - above) / (to - from);
    for (const [title, seconds] of sharesAt(chart, first + device, from, to)) found.set(title, (found.get(title) || 0) + weight * seconds);
    ends.push(from, to);
  }
  return { devices: [first + Math.floor(above), first + Math.ceil(below - 1e-9) - 1], from: Math.max(Math.min(...ends), 0), to: Math.min(Math.max(...ends), chart.makespan), shares: found };
}

function raster(chart, first, last, lines, cols) {   // a canvas of the devices from `first` to before `last`: a line for each part of a row, or `lines` that are means by area
  const count = last - first, slots = chart.kinds.some((kind) => kind.slot), halves = slots && !isLow(chart) ? 2 : 1;
  const rows = count * halves, footprints = footprintsOf(chart, cols, view.t0 / chart.tick, view.t1 / chart.tick);
  const tall = lines || rows, step = rows / tall, flat = flatness(chart), paper = light(theme.paper), [row, single] = [0, 1].map(() => new Float64Array(3 * cols));
  if (mean.length < 3 * cols * tall) mean = new Float32Array(3 * cols * tall); else mean.fill(0);
  for (let line = 0, windows = null, gaps = null; line < rows; line++) {
    const device = first + Math.floor(line / halves);
    if (line % halves === 0) { windows = windowsOf(chart, device, footprints); gaps = isMixed(chart) ? null : gapsOf(chart, device, cols); }
    const part = halves === 1 && slots ? 2 : line % halves;
    rowLight(chart, device, part, windows, row);
    if (flat > 0 && flat < 1) { rowLight(chart, device, part, footprints, single); for (let at = 0; at < row.length; at++) row[at] += (1 - flat) * (single[at] - row[at]); }
    if (gaps) for (let at = 0, to = 0; at < cols; at++) for (const part of paper) row[to] += gaps[at] * (part - row[to++]);   // in the same light
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
