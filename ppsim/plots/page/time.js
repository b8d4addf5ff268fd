// The time axis: linear, or with fill and drain enlarged if the steady part would take nearly all of the width.
const LEFT = 78, LEDGER = 130, PARTS = [0, 0.36, 0.64, 1];   // pixels; ends of fill, steady part and drain as fractions of the width
let borders = null;   // seconds at which these parts end; null for a linear axis

const right = () => (on.has("ledger") ? LEDGER + 88 : on.has("memory") ? 122 : 80);
const innerWidth = () => Math.max(width - LEFT - right(), 1);
const tooMany = (boxes, pixels) => boxes > 0.3 * pixels;   // to see each of them

function phases() {   // borders of fill, steady part and drain of all charts; null if boxes are wide enough, or little time is steady
  const begin = Math.max(...charts.map((chart) => chart.steady[0])), end = Math.min(...charts.map((chart) => chart.steady[1]));
  const many = charts.some((chart) => chart.devices && tooMany(chart.boxes / chart.devices, innerWidth()));
  return many && begin > 0 && end < until && end - begin > until / 2 ? [0, begin, end, until] : null;
}

function between(value, from, to) {   // linear interpolation between the points (from, to), extended beyond both ends
  let part = 0;
  while (part < from.length - 2 && value > from[part + 1]) part++;
  return to[part] + (value - from[part]) / (from[part + 1] - from[part]) * (to[part + 1] - to[part]);
}

const placeOfTime = (time) => (borders ? between(time, borders, PARTS) : time / until);   // fraction of the width of the whole timeline
const timeOfPlace = (place) => (borders ? between(place, PARTS, borders) : place * until);
const inView = () => [placeOfTime(view.t0), placeOfTime(view.t1)];

function toX(time) {
  const [from, to] = inView();
  return LEFT + (placeOfTime(time) - from) / (to - from) * innerWidth();
}

function toTime(x) {
  const [from, to] = inView();
  return timeOfPlace(from + (x - LEFT) / innerWidth() * (to - from));
}

const middle = () => toTime(LEFT + innerWidth() / 2);

function see(from, to) {   // show the times between two fractions of the whole width
  const span = Math.min(Math.max(to - from, 1e-7), 1), begin = Math.min(Math.max(from, 0), 1 - span);
  if (span === 1) Object.assign(view, { t0: 0, t1: until });
  else Object.assign(view, { t0: timeOfPlace(begin), t1: timeOfPlace(begin + span) });
}

function zoomTime(factor, time) {
  const [from, to] = inView(), place = placeOfTime(time);
  see(place - (place - from) * factor, place + (to - place) * factor);
  clamp();
}

function stretches() {   // the visible parts of the axis in which time is linear: [from, to] in seconds
  const cuts = [view.t0, ...(borders || []).filter((time) => time > view.t0 && time < view.t1), view.t1];
  return cuts.slice(1).map((to, part) => [cuts[part], to]);
}
