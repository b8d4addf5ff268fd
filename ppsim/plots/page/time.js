// Time and pixels: even, or with fill and drain enlarged where the steady part would take nearly all of the width.
const LEFT = 78, LEDGER = 130, PARTS = [0, 0.36, 0.64, 1];   // pixels; where fill, steady part and drain end, of the width
let borders = null;   // seconds where these parts end; null where time is even

const right = () => (on.has("ledger") ? LEDGER + 88 : on.has("memory") ? 122 : 80);
const innerWidth = () => Math.max(width - LEFT - right(), 1);
const tooMany = (boxes, pixels) => boxes > 0.3 * pixels;   // to be seen one by one

function phases() {   // borders of fill, steady part and drain of all charts, or null where they are wide enough, or few is steady
  const begin = Math.max(...charts.map((chart) => chart.steady[0])), end = Math.min(...charts.map((chart) => chart.steady[1]));
  const many = charts.some((chart) => chart.devices && tooMany(chart.boxes / chart.devices, innerWidth()));
  return many && begin > 0 && end < until && end - begin > until / 2 ? [0, begin, end, until] : null;
}

function between(value, from, to) {   // on the straight lines through the points (from, to), which go on outside of them
  let part = 0;
  while (part < from.length - 2 && value > from[part + 1]) part++;
  return to[part] + (value - from[part]) / (from[part + 1] - from[part]) * (to[part + 1] - to[part]);
}

const placeOfTime = (time) => (borders ? between(time, borders, PARTS) : time / until);   // in parts of the whole width
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

function see(from, to) {   // what lies between two places
  const span = Math.min(Math.max(to - from, 1e-7), 1), begin = Math.min(Math.max(from, 0), 1 - span);
  if (span === 1) Object.assign(view, { t0: 0, t1: until });
  else Object.assign(view, { t0: timeOfPlace(begin), t1: timeOfPlace(begin + span) });
}

function zoomTime(factor, time) {
  const [from, to] = inView(), place = placeOfTime(time);
  see(place - (place - from) * factor, place + (to - place) * factor);
  clamp();
}

function stretches() {   // what is seen, in parts in each of which time is even: [from, to] in seconds
  const cuts = [view.t0, ...(borders || []).filter((time) => time > view.t0 && time < view.t1), view.t1];
  return cuts.slice(1).map((to, part) => [cuts[part], to]);
}
