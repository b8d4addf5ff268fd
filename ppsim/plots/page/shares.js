// Rows whose actions are too narrow to show: stacks of the time in each kind; in flat rows one shade for the busy time.
const FLAT = 16, STEPS = 32;   // pixels of a row too low for stacks; shades of the scale
let shades = [];

function dressScale(stops) {   // sets `shades`, from idle to busy, interpolated between colours #rrggbb
  const channels = stops.map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
  const knots = channels.map((_, place) => place / (channels.length - 1) * STEPS);
  shades = Array.from({ length: STEPS + 1 }, (_, step) => `rgb(${[0, 1, 2].map((part) => Math.round(between(step, knots, channels.map((one) => one[part])))).join()})`);
}

function sharesOf(chart, device, bin, from, to) {   // fraction of each time bin in each kind, from bin `origin` on
  const origin = Math.floor(from / bin), end = Math.min(to, chart.makespan), bins = Math.max(Math.ceil(end / bin) - origin, 0);
  const kinds = chart.kinds.length, parts = new Float64Array(bins * kinds);
  const first = chart.firstEndingAfter(device, origin * bin), last = chart.firstStartingAfter(device, (origin + bins) * bin);
  const { start, length, kind } = chart.column, scale = chart.tick / bin;
  for (let box = first; box < last; box++) {
    const begin = Math.max(start[box] * scale - origin, 0), until = Math.min((start[box] + length[box]) * scale - origin, bins);
    for (let place = Math.floor(begin); place < until; place++)
      parts[place * kinds + kind[box]] += Math.min(until, place + 1) - Math.max(begin, place);
  }
  return { origin, bins, parts };
}

function drawShares(chart, device, { top, tall }, from, to) {   // bins start at fixed times, so that moving the chart does not change them
  const perSecond = (toX(to) - toX(from)) / (to - from), flat = tall < FLAT, kinds = chart.kinds.length;
  const bin = chart.period * perSecond > 4 ? 1 / perSecond : chart.period * Math.ceil(2 / perSecond / chart.period);
  const { origin, bins, parts } = sharesOf(chart, device, bin, from, to);
  drawn[flat ? "scale" : "stacks"] = true;
  for (let place = 0; place < bins; place++) {
    const begin = Math.round(toX((origin + place) * bin)), end = Math.round(toX(Math.min((origin + place + 1) * bin, chart.makespan)));
    const full = Math.min(chart.makespan / bin - origin - place, 1);   // the last bin is shorter
    const mine = Array.from(parts.subarray(place * kinds, (place + 1) * kinds), (part) => part / full);
    if (flat) {
      context.fillStyle = shades[Math.round(Math.min(mine.reduce((sum, part) => sum + part, 0), 1) * STEPS)];
      context.fillRect(begin, top, end - begin, tall);
    } else drawStack(chart, mine, begin, end - begin, top, tall);
  }
}

function drawStack(chart, parts, x, wide, top, tall) {
  let bottom = top + tall;
  parts.forEach((part, code) => {
    if (!(part > 0)) return;
    context.fillStyle = colourOf(chart.kinds[code]);
    context.fillRect(x, bottom - part * tall, wide, part * tall);
    bottom -= part * tall;
  });
}
