// What would be better: at the end of each schedule's numbers another family, or what a search within the same memory finds.
const PAUSE = 700, SLICES = [5, 15, 40], STOPPED = "stopped";   // milliseconds without a change; seconds of a search, each longer than the one before; why a comparison ended
let faster = { key: "", found: [] }, asking = null, asked = 0, pausing = 0;
const searches = new Map();   // schedule's object -> { controller, begun, seconds, best }

const keyOf = (common) => JSON.stringify({ ...common, by_device: rowsOf(common) });
function askFaster(seconds = 8) {   // the other families at these sizes and costs, as soon as nothing has changed for a while
  clearTimeout(pausing);
  const common = keyOf(state.common);
  if (common === keyOf(START.common) && offer.first.length) faster = { key: common, found: offer.first };   // of the first visit, known beforehand
  if (common === faster.key || gone || runs.every((run) => run.result?.faults)) return;
  pausing = setTimeout(async () => {
    asking?.abort();
    const mine = asking = new AbortController(), { schedule, csv, ...rest } = caseOf(0);
    asked = performance.now();
    const tick = () => { if (asking === mine && !mine.signal.aborted && faster.key !== common) { viewer.mark(marks()); setTimeout(tick, 1000); } };
    tick();
    try {
      const response = await ask("/api/better", { ...rest, seconds }, mine.signal);
      faster = { key: common, found: [], ...(response.ok ? await response.json() : { stopped: true }) };
    } catch { if (!mine.signal.aborted || mine.signal.reason === STOPPED) faster = { key: common, found: [], stopped: true }; }   // a later change asks anew
    viewer.mark(marks());
  }, PAUSE);
}

const share = (step, own) => signed(step / own - 1);
function short(seconds, step) {   // in the unit of the step, with one decimal, or with one digit if it is short
  const [factor, unit] = unitFor(step), places = Math.max(1, -Math.floor(Math.log10(seconds * factor || 1)));
  return `${(seconds * factor).toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places })} ${unit}`;
}

function comparison() {   // what is known of the other families, for all schedules: { text, act }
  const answered = faster.key === keyOf(state.common);
  if (!answered && asking && !asking.signal.aborted && !gone) return { text: `comparing, ${secondsSince(asked)} s`, act: ["Stop", () => asking.abort(STOPPED)] };
  if (!answered || (!faster.stopped && !faster.left)) return {};
  return { text: faster.stopped ? "not compared" : `${counted(faster.left, "families").replace("familie", "family")} not compared yet`, act: ["Compare", () => { const seconds = faster.stopped ? undefined : 50; faster.key = ""; askFaster(seconds); }] };
}

function betterOf(index) {   // { text, act: [text of the button, what it does] } of a schedule
  const { good } = runs[index];
  return good && chartFor(index).step ? adviceOn(index, good) : {};   // no verdict before its number
}

function adviceOn(index, { chart, lower_bound: bound }) {
  const { capacity, most, unit } = chart.memory, than = (step) => share(step, chart.step);
  const answered = faster.key === keyOf(state.common), known = answered ? faster.found.filter((one) => one.schedule !== state.schedules[index].schedule) : [];
  const number = (bytes) => (unit === "bytes" ? Number((bytes / 1e9).toPrecision(3)) : Number(bytes.toPrecision(3))), held = unit === "bytes" ? " GB" : "";
  const memory = (peak) => (Math.abs(peak / most - 1) < 0.01 ? "same memory" : `peak ${number(peak)} instead of ${number(most)}${held}`);
  const fits = (one, limit) => one.peak <= limit * (1 + 1e-9), unrun = (one) => (one.runs ? "" : " (no framework runs it)");
  const best = (wanted) => { const found = known.filter(wanted); return found.find((one) => one.runs) ?? found[0]; };   // what a framework runs comes first
  const add = (one) => (state.schedules.some(({ schedule }) => schedule === one.schedule) ? null : ["Add", () => addFound({ schedule: one.schedule })]);
  if (capacity && most > capacity * (1 + 1e-9)) {
    const other = best((one) => fits(one, capacity));
    return !other ? {} : { text: `${other.schedule} needs ${number(most - other.peak)}${held} less, ${than(other.step)}${unrun(other)}`, act: add(other) };
  }
  const search = searches.get(state.schedules[index]), found = search?.best && search.best.step < chart.step * (1 - 1e-4) ? search.best : null;
  const step = found && `${short(found.step, chart.step)} (${than(found.step)})`;
  if (search?.controller) return { text: `searching, ${secondsSince(search.begun)} s${found ? `: ${step}` : ""}`, act: ["Stop", () => stopSearches([index])] };
  if (found) return { text: `a search found ${step}, ${memory(found.peak)}`, act: ["Add", () => addFound({ csv: found.csv, name: `${nameOf(index)} searched` })] };
  if (search?.fault) return { text: search.fault };
  if (search?.ended) return { text: `nothing faster found: the search ended after ${search.seconds.toFixed(1)} s` };
  if (search) return { text: `nothing faster found in ${Math.round(search.seconds)} s`, act: ["Search on", () => searchFor(index, [50])] };
  const other = best((one) => one.step < chart.step * (1 - 1e-4) && fits(one, most));
  if (other) return { text: `${other.schedule}: ${than(other.step)}, ${memory(other.peak)}${unrun(other)}`, act: add(other) };
  if (bound.gap < 5e-4) return { text: answered && !faster.stopped && !faster.left ? "nothing faster in this memory" : "" };
  return { text: `${short(chart.makespan - bound.seconds, chart.step)} above its bound`, act: state.schedules[index].csv !== undefined ? null : ["Search", () => searchFor(index, SLICES)] };
}
const secondsSince = (begun) => Math.floor((performance.now() - begun) / 1000);

function addFound(one) {   // as the next schedule; of four it replaces the slowest but the base
  let at = state.schedules.length;
  if (at >= MOST) {
    at = all().filter((index) => index !== baseOf()).sort((a, b) => (runs[b].good?.chart.step || 0) - (runs[a].good?.chart.step || 0))[0];
    notice = `${one.name || one.schedule} took the place of ${nameOf(at)}, the slowest of four; Undo brings it back.`;
  }
  state.schedules[at] = one;
  showAll();
}

async function searchFor(index, slices) {   // each slice is a longer search; it stops at a change, or when asked to
  const one = state.schedules[index], before = searches.get(one), search = { controller: new AbortController(), begun: performance.now(), seconds: before?.seconds || 0, best: before?.best };
  searches.set(one, search);
  const tick = () => { if (searches.get(one) !== search || !search.controller) return; viewer.mark(marks()); setTimeout(tick, 1000); };
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
  if (searches.get(one) === search) viewer.mark(marks());
}

function stopSearches(indexes) {   // after a change: what they found belongs to other costs
  for (const index of indexes) {
    const search = searches.get(state.schedules[index]);
    search?.controller?.abort();
    if (search && !search.best) searches.delete(state.schedules[index]);
  }
}
