// A measured step above its simulation: the picker of iterations, marks of what is slow, and of what takes longer.
const MEASURED = 0, SIMULATED = 1, LEAST = 0.05;   // of the median action: smaller differences are not marked
let iteration = 0;   // index of the step that is shown

function buildSteps() {   // a bar per iteration, as high as it is long
  const { numbers, seconds, shown: first } = options.steps, longest = Math.max(...seconds);
  SWITCHES.push(["differences", "Differences", "d"]);
  KEYS.push(["d", "differences of measured and simulated"], ["< >", "the iteration before and after"]);
  iteration = first;
  const middle = [...seconds].sort((one, other) => one - other)[(seconds.length - 1) >> 1];
  return numbers.map((number, index) => {
    const which = [seconds[index] === middle && "median", seconds[index] === Math.min(...seconds) && "shortest", seconds[index] === longest && "longest"].filter(Boolean);
    const words = `step ${number}: ${timeText(seconds[index])}${which.length && seconds.length > 1 ? `, ${which.join(" and ")}` : ""}`;
    const bar = make("i", {}), one = make("button", { type: "button", title: words, label: words, onclick: () => showStep(index) }, bar);
    bar.style.height = `${Math.max(100 * seconds[index] / (longest || 1), 4)}%`;
    one.disabled = index !== first && !options.steps.charts[index];
    return one;
  });
}

const timeText = (value) => { const [factor, symbol] = unitFor(value); return `${Number((value * factor).toPrecision(4))} ${symbol}`; };

function dressSteps() {   // which bar is pressed, and the words beside the bars
  const { numbers, seconds } = options.steps;
  [...parts.steps.querySelectorAll("button")].forEach((one, index) => one.setAttribute("aria-pressed", String(index === iteration)));
  parts.stepWords.textContent = `step ${numbers[iteration]}: ${timeText(seconds[iteration])}, ${numbers.length === 1 ? "the only one" : `one of ${numbers.length}`}`;
}

let given0 = null;   // the page's own data: the first step and what stands below it
async function showStep(index) {
  const data = index === options.steps.shown ? given0[MEASURED] : options.steps.charts[index];
  if (!data) return;
  iteration = index;
  dressSteps();
  await show([data, ...given0.slice(1)]);
}

function stepIteration(by) {   // the next iteration that the page can show
  for (let index = iteration + by; index >= 0 && index < options.steps.numbers.length; index += by)
    if (index === options.steps.shown || options.steps.charts[index]) return showStep(index);
}

function partner(chart) { return options.steps && charts.length > SIMULATED ? (chart === charts[MEASURED] ? charts[SIMULATED] : chart === charts[SIMULATED] ? charts[MEASURED] : null) : null; }

function named(chart) { return (chart.named ??= new Map([...Array(chart.boxes).keys()].map((box) => [nameOf(chart, box), box]))); }

function twin(chart, box) {   // the same action of the other chart on the same device, or undefined
  const other = partner(chart), found = other && named(other).get(nameOf(chart, box));
  return found !== undefined && found !== null && other.deviceOf(found) === chart.deviceOf(box) ? found : undefined;
}

const waitBefore = (chart, box, first) => Math.max(chart.start(box) - (box > first ? chart.end(box - 1) : 0), 0);

function longer(chart, box) {   // seconds by which an action, and the wait before it, exceed those of the other chart
  const other = partner(chart), same = twin(chart, box);
  if (same === undefined) return [0, 0];
  const device = chart.deviceOf(box), [first] = chart.boxesOf(device), [second] = other.boxesOf(device);
  const excess = [chart.end(box) - chart.start(box) - other.end(same) + other.start(same), waitBefore(chart, box, first) - waitBefore(other, same, second)];
  return excess.map((part) => (part > LEAST * chart.box ? part : 0));
}

function drawDifferences(chart, place, device) {   // in the gap above the row, a bar over what takes longer than in the other chart
  if (!partner(chart) || isMixed(chart)) return;
  const { top } = bandOf(chart, place, device), gap = gapOf(chart), thick = Math.max(gap - 1, 2);
  const paint = (from, to) => context.fillRect(toX(from), top - Math.min(gap, thick), Math.max(toX(to) - toX(from), 1), thick);
  context.fillStyle = theme.longer;
  const last = Math.min(chart.firstStartingAfter(device, view.t1) + 1, chart.boxesOf(device)[1]);
  for (let box = chart.firstEndingAfter(device, view.t0); box < last; box++) {
    const [action, wait] = longer(chart, box);
    if (action) paint(chart.end(box) - action, chart.end(box));
    if (wait) paint(chart.start(box) - wait, chart.start(box));
  }
}

function marksOf(chart) {   // box -> [what, words] of stragglers, and of the stalls before a box
  if (chart.marked) return chart.marked;
  chart.marked = new Map();
  for (const what of ["stragglers", "stalls"]) for (const [name, words] of Object.entries(chart[what] || {})) {
    const box = named(chart).get(name);
    if (box !== undefined) chart.marked.set(box, [...(chart.marked.get(box) || []), [what, words]]);
  }
  return chart.marked;
}

function drawSlow(chart, place, device) {   // a frame around a straggler, a bracket under a stall
  const { top, tall } = bandOf(chart, place, device), [first, last] = chart.boxesOf(device);
  context.strokeStyle = theme.limit; context.lineWidth = 2;
  for (const [box, found] of marksOf(chart)) if (box >= first && box < last) for (const [what] of found) {
    const x = toX(chart.start(box)), wide = Math.max(toX(chart.end(box)) - x, 2);
    if (what === "stragglers") {   // on a halo: T is nearly as dark and as red as the frame
      for (const [colour, thick] of [[theme.halo, 5], [theme.limit, 2]]) { context.strokeStyle = colour; context.lineWidth = thick; context.strokeRect(x + 1, top + 1, Math.max(wide - 2, 1), tall - 2); }
      continue;
    }
    const from = toX(box > first ? chart.end(box - 1) : 0);
    context.beginPath(); context.moveTo(from + 1, top + tall - 6); context.lineTo(from + 1, top + tall - 1); context.lineTo(x - 1, top + tall - 1); context.lineTo(x - 1, top + tall - 6); context.stroke();
  }
}

function slowLines(chart, item, what) { return (marksOf(chart).get(item) || []).filter(([one]) => one === what).map(([, words]) => words); }

function measuredLines(chart, item) {   // the length in the other chart, and why an action is marked
  const other = partner(chart), same = other && chart.isBox(item) ? twin(chart, item) : undefined;
  const words = slowLines(chart, item, "stragglers");
  if (same === undefined) return words;
  const mine = chart.end(item) - chart.start(item), theirs = other.end(same) - other.start(same);
  return [`${other.short}: ${lengthText(theirs)}${theirs > 0 ? `; here ${signed(mine / theirs - 1)}` : ""}`, ...words];
}

function measuredLegend() {
  const entries = [];
  if (options.steps && on.has("differences") && charts.length > SIMULATED) entries.push(make("span", {}, swatch(`linear-gradient(${theme.longer} 3px, ${theme.kinds.F} 3px)`), "longer than in the other chart"));
  for (const [what, text, className] of [["stragglers", "straggler", "framed"], ["stalls", "stall", "bracket"]])
    if (charts.some((chart) => Object.keys(chart[what] || {}).length)) entries.push(make("span", {}, make("i", { className }), text));
  if (charts.some((chart) => Object.keys(chart.slow || {}).length)) entries.push(make("span", { className: "slow" }, "▸ slow device"));
  return entries;
}
