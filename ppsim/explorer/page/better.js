// What would be better: at the end of each schedule's numbers another family, or what a search within the same memory finds.
const PAUSE = 700, SLICES = [5, 15, 40];   // milliseconds without a change; seconds of a search, each longer than the one before
let faster = { key: "", found: [] }, asking = null, pausing = 0;
const searches = new Map();   // schedule's object -> { controller, begun, seconds, best }

function askFaster() {   // the other families at these sizes and costs, as soon as nothing has changed for a while
  clearTimeout(pausing);
  const common = JSON.stringify({ ...state.common, by_device: caseOf(0).by_device });
  if (common === faster.key || gone || runs.some((run) => run.result?.faults)) return;
  pausing = setTimeout(async () => {
    asking?.abort();
    asking = new AbortController();
    const { schedule, csv, ...rest } = caseOf(0);
    try {
      const response = await ask("/api/better", rest, asking.signal);
      faster = { key: common, found: response.ok ? (await response.json()).found : [] };
      viewer.mark(marksOf(drawnRuns()));
    } catch { if (!asking.signal.aborted) faster = { key: common, found: [] }; }   // a later change asks anew
  }, PAUSE);
}

const share = (step, own) => signed(step / own - 1);
function short(seconds, step) {   // in the unit of the step, or in its own if it is short
  const [factor, unit] = unitFor(seconds * unitFor(step)[0] < 0.1 ? seconds : step);
  return `${(seconds * factor).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} ${unit}`;
}

function betterOf(index) {   // { text, act: [text of the button, what it does] } of a schedule
  const { good } = runs[index];
  if (!good) return { text: "" };
  const { chart, lower_bound: bound } = good, { capacity, device, most, unit } = chart.memory, words = most <= device ? "tight" : "does not fit";
  const answered = faster.key === JSON.stringify({ ...state.common, by_device: caseOf(0).by_device }), known = answered ? faster.found.filter((one) => one.schedule !== state.schedules[index].schedule) : [];
  const fits = (one, limit) => one.peak <= limit * (1 + 1e-9), add = (one) => ["Add", () => addFound({ schedule: one.schedule })];
  const best = (wanted) => { const found = known.filter(wanted); return found.find((one) => one.runs) ?? found[0]; };   // what a framework runs comes first
  const is_new = (one) => !state.schedules.some((schedule) => schedule.schedule === one.schedule);
  const above = bound.gap < 5e-4 ? "at its bound" : `${short(chart.makespan - bound.seconds, chart.step)} above its bound`, lead = `${above} · `, unrun = (one) => (one.runs ? "" : " (no framework runs it)");
  if (capacity && most > capacity * (1 + 1e-9)) {
    const other = best((one) => fits(one, capacity));
    if (!other) return { text: `${lead}${words}` };
    const less = unit === "bytes" ? `${Number(((most - other.peak) / 1e9).toPrecision(3))} GB` : Number((most - other.peak).toPrecision(3));
    return { text: `${lead}${words}: ${other.schedule} needs ${less} less, ${share(other.step, chart.step)}${unrun(other)}`, act: is_new(other) ? add(other) : null };
  }
  const search = searches.get(state.schedules[index]), found = search?.best && search.best.step < chart.step * (1 - 1e-4) ? search.best : null;
  if (search?.controller) {
    const words = found ? `: ${short(found.step, chart.step)} (${share(found.step, chart.step)})` : "";
    return { text: `${lead}searching, ${Math.floor((performance.now() - search.begun) / 1000)} s${words}`, act: ["Stop", () => stopSearches([index])] };
  }
  if (found) return { text: `${lead}a search found ${short(found.step, chart.step)} (${share(found.step, chart.step)}), same memory`, act: ["Add", () => addFound({ csv: found.csv, name: `${nameOf(index)} searched` })] };
  if (search?.fault) return { text: `${lead}${search.fault}` };
  if (search?.ended) return { text: `${lead}nothing faster found: the search ended after ${search.seconds.toFixed(1)} s` };
  if (search) return { text: `${lead}nothing faster found in ${Math.round(search.seconds)} s`, act: ["Search on", () => searchFor(index, [50])] };
  const other = best((one) => one.step < chart.step * (1 - 1e-4) && fits(one, most) && is_new(one));
  if (other) return { text: `${lead}${other.schedule}: ${share(other.step, chart.step)}, same memory${unrun(other)}`, act: add(other) };
  const asks = !answered && !gone && !runs.some((run) => run.result?.faults), text = asks ? `${lead}comparing …` : above;
  return { text, act: bound.gap < 5e-4 || state.schedules[index].csv !== undefined ? null : ["Search", () => searchFor(index, SLICES)] };
}

function addFound(one) {   // as the next schedule; of four it replaces the slowest but the base
  let at = state.schedules.length;
  if (at >= MOST) at = all().filter((index) => index !== baseOf()).sort((a, b) => (runs[b].good?.chart.step || 0) - (runs[a].good?.chart.step || 0))[0];
  state.schedules[at] = one;
  showAll();
}

async function searchFor(index, slices) {   // each slice is a longer search; it stops at a change, or when asked to
  const one = state.schedules[index], before = searches.get(one), search = { controller: new AbortController(), begun: performance.now(), seconds: before?.seconds || 0, best: before?.best };
  searches.set(one, search);
  const tick = () => { if (searches.get(one) !== search || !search.controller) return; viewer.mark(marksOf(drawnRuns())); setTimeout(tick, 1000); };
  tick();
  for (const seconds of slices) {
    try {
      const response = await ask("/api/search", { ...caseOf(index), seconds }, search.controller.signal), found = await response.json();
      if (found.faults) { search.fault = found.faults[0]; break; }
      search.seconds += found.seconds;
      search.ended = found.seconds < 0.9 * seconds;
      if (!search.best || found.step < search.best.step) search.best = found;
      if (search.ended || found.step <= runs[index].good.lower_bound.seconds * 1.0005) break;
    } catch { break; }
  }
  search.controller = null;
  if (searches.get(one) === search) viewer.mark(marksOf(drawnRuns()));
}

function stopSearches(indexes) {   // after a change: what they found belongs to other costs
  for (const index of indexes) {
    const search = searches.get(state.schedules[index]);
    search?.controller?.abort();
    if (search && !search.best) searches.delete(state.schedules[index]);
  }
}
