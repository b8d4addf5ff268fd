// A measured step above its simulation: the picker of iterations, marks of what is slow, and of what takes longer.
const MEASURED = 0, SIMULATED = 1, LEAST = 0.05, MARKED = 5, SHORTEST = 3;   // of the median action: smaller differences are not marked; actions, and waits, that are marked; pixels of a bar, so that it is seen
let iteration = 0;   // index of the step that is shown

function buildSteps() {   // a bar per iteration, as high as it is long, and words beside them
  const { numbers, seconds, shown: first } = options.steps, longest = Math.max(...seconds);
  SWITCHES.push(["differences", "Differences", "d"]);
  KEYS["Measured step"] = [["d", "what takes longer than simulated"], ["< >", "the iteration before, after"]];
  iteration = first;
  const bars = numbers.map((number, index) => {
    const words = stepWords(index), bar = make("i", {}), one = make("button", { title: words, label: words, onclick: () => showStep(index) }, bar);
    bar.style.height = `${100 * seconds[index] / (longest || 1)}%`;
    one.disabled = index !== first && !options.steps.charts[index];
    return one;
  });
  return parts.steps = make("div", { className: "steps", role: "group", label: "Iterations" }, make("span", { className: "bars" }, ...bars), make("span", {}));
}

function stepWords(index) {   // such as "step 2: 436.7 ms, the median of 5"
  const { numbers, seconds } = options.steps, sorted = [...seconds].sort((one, other) => one - other), found = seconds.length === 2 ? { shorter: 0, longer: 1 } : { shortest: 0, longest: seconds.length - 1, median: (seconds.length - 1) >> 1 };
  const which = Object.keys(found).filter((name) => seconds[index] === sorted[found[name]]).at(-1);
  return `step ${numbers[index]}: ${seconds1(seconds[index], seconds[index])}, ${numbers.length === 1 ? "the only one" : `${which ? `the ${which}` : "one"} of ${numbers.length}`}`;
}

function dressSteps() {   // which bar is pressed, and the words beside the bars; tables that may scroll are reached by keys
  for (const one of document.querySelectorAll(".words div > div")) one.tabIndex = 0;
  [...parts.steps.querySelectorAll("button")].forEach((one, index) => one.setAttribute("aria-pressed", String(index === iteration)));
  parts.steps.lastChild.textContent = stepWords(iteration);
  parts.table.firstChild.textContent = `Devices, step ${options.steps.numbers[iteration]}`;
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

function twin(chart, box) {   // the same action of the other chart on the same device, or undefined
  const other = partner(chart), found = other && named(other).get(nameOf(chart, box));
  return found !== undefined && found !== null && other.deviceOf(found) === chart.deviceOf(box) ? found : undefined;
}

const waitBefore = (chart, box, first) => Math.max(chart.start(box) - (box > first ? chart.end(box - 1) : 0), 0);

function longer(chart, box) {   // seconds by which an action, and the wait before it, exceed those of the other chart
  const other = partner(chart), same = twin(chart, box);
  if (same === undefined) return [0, 0];
  const device = chart.deviceOf(box), [first] = chart.boxesOf(device), [second] = other.boxesOf(device);
  const excess = [chart.duration(box) - other.duration(same), waitBefore(chart, box, first) - waitBefore(other, same, second)];
  return excess.map((part) => (part > LEAST * chart.box ? part : 0));
}

function differences(chart) {   // of a measured step, the actions in view and the waits before actions that exceed the simulated ones most: { box, seconds, wait, what }
  if (!on.has("differences") || chart !== charts[MEASURED] || !partner(chart)) return [];
  chart.longer ??= upTo(chart.boxes).flatMap((box) => longer(chart, box).map((seconds, at) => ({ box, seconds, wait: at === 1 }))).filter(({ seconds }) => seconds).sort((one, other) => other.seconds - one.seconds);
  const seen = chart.longer.filter(({ box, wait, seconds }) => chart.end(box) > view.t0 && chart.start(box) - (wait ? seconds : 0) < view.t1);
  return [false, true].flatMap((waits) => seen.filter(({ wait }) => wait === waits).slice(0, MARKED)).map((one) => ({ ...one, what: !slowLines(chart, one.box, one.wait ? "stalls" : "stragglers").length ? "longer" : one.wait ? "stall" : "straggler" }))
    .filter(({ what, wait, seconds }) => what !== "longer" || !wait);
}

function drawMarked(chart, place) {   // a frame around stragglers, a bracket under a stall, and what else takes longer ends in a bar as long as the excess
  const frame = (left, top, wide, tall, thick, colour) => { pen(colour, thick); context.strokeRect(left + thick / 2, top + thick / 2, Math.max(wide - thick, 1), tall - thick); };   // all within the row
  for (const { box, seconds, wait, what } of differences(chart)) {
    const device = chart.deviceOf(box), { top, tall } = bandOf(chart, place, device), x = toX(chart.start(box)), wide = Math.max(toX(chart.end(box)) - x, 2), from = toX(box > chart.boxesOf(device)[0] ? chart.end(box - 1) : 0);
    if (what === "longer") {
      context.fillStyle = theme.longer; const bar = Math.max(pixels(seconds), SHORTEST); context.fillRect(x + wide - bar, top, bar, tall);
    } else if (wait) {
      pen(theme.limit, 2);
      context.beginPath(); context.moveTo(from + 1, top + tall - 6); context.lineTo(from + 1, top + tall - 1); context.lineTo(x - 1, top + tall - 1); context.lineTo(x - 1, top + tall - 6); context.stroke();
    } else   // on a halo: T is nearly as dark and as red as the frame
      for (const [colour, thick] of [[theme.halo, 3.5], [theme.limit, 2]]) frame(x, top, wide, tall, thick, colour);
  }
}

function measuredLines(chart, item) {   // the length in the other chart, and why an action is marked
  const other = partner(chart), same = other && chart.isBox(item) ? twin(chart, item) : undefined;
  const words = slowLines(chart, item, "stragglers");
  if (same === undefined) return words;
  const mine = chart.duration(item), theirs = other.duration(same);
  return [`${other.short}: ${lengthText(theirs)}${theirs > 0 ? `; here ${signed(mine / theirs - 1)}` : ""}`, ...words];
}

function measuredLegend() {
  const found = new Set(charts.flatMap((chart) => differences(chart).map(({ what }) => what))), symbols = [["longer", "longer than simulated", swatch(theme.longer, "tall excess")], ["straggler", "straggler", make("i", { className: "framed" })], ["stall", "stall", make("i", { className: "bracket" })]];
  return [...(found.size || on.has("differences") ? [make("span", { textContent: found.size ? "the longest in view:" : charts[MEASURED]?.longer?.length ? "no action in view takes longer than simulated" : `no difference is over ${100 * LEAST} % of the median action` })] : []), ...symbols.filter(([what]) => found.has(what)).map(([, text, symbol]) => make("span", {}, symbol, text))];
}
Object.assign(extra, { differences, draw: drawMarked, lines: measuredLines, legend: measuredLegend, build: buildSteps, dress: dressSteps, step: stepIteration, keep: (every) => { given0 ??= every; } });
