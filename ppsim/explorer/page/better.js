// What would be better: at the end of each schedule's numbers another family, or what a search within the same memory finds.
const PAUSE = 700, SLICES = [5, 15, 40], STOPPED = "stopped";   // milliseconds without a change; seconds of a search, each longer than the one before; why a comparison ended
let faster = { key: "", found: [] }, asking = null, asked = 0, pausing = 0;
const searches = new Map();   // request of a schedule -> { controller, begun, seconds, best }
const searchKey = (index) => JSON.stringify(Object.entries(caseOf(index)).sort());   // what a search found holds for these sizes and costs, also after Undo

const keyOf = (common) => JSON.stringify({ ...common, by_device: rowsOf(common) });
function askFaster() {   // the other families at these sizes and costs, as soon as nothing has changed for a while
  clearTimeout(pausing);
  const common = keyOf(state.common);
  if (common === keyOf(START.common) && offer.first.length) faster = { key: common, found: offer.first, left: 0 };   // of the first visit, known beforehand
  if (common === faster.key || gone || runs.every((run) => run.result?.faults)) return;
  pausing = setTimeout(() => { faster = { key: common, found: [], known: [], left: null }; compareOthers([1, 2, 5]); }, PAUSE);
}

function ticks(holds) { if (holds()) { viewer.mark(marks()); setTimeout(ticks, 1000, holds); } }   // shows the seconds that work takes

async function compareOthers(rounds) {   // seconds of each round, which shows what it has found
  asking?.abort();
  const mine = asking = new AbortController(), { schedule, csv, ...rest } = caseOf(0), own = faster;
  asked = performance.now();
  own.asking = mine;
  ticks(() => own.asking && faster === own);
  try {
    for (const seconds of rounds) {
      const response = await ask("/api/better", { ...rest, seconds, known: own.known }, mine.signal), { found = own.found, known, left } = await response.json();
      if (!response.ok) break;
      Object.assign(own, { known, left, found: [...own.found, ...found].sort((one, other) => one.step - other.step) });
      if (!left) break;
      viewer.mark(marks());
    }
  } catch { if (mine.signal.aborted && mine.signal.reason !== STOPPED) own.key = ""; }   // a later change asks anew
  own.asking = null;
  viewer.mark(marks());
}

const share = (step, own) => signed(step / own - 1);
function short(seconds, step) {   // in the unit of the step, with one decimal, or with one digit if it is short
  const unit = unitFor(step);
  return inUnit(seconds, unit, Math.max(1, -Math.floor(Math.log10(seconds * unit[0] || 1))));
}

function comparison() {   // what is known of the other families, for all schedules: { text, act }
  const { key, known, left, asking: own } = faster;
  if (key !== keyOf(state.common) || gone) return {};
  if (own) return { text: `comparing, ${secondsSince(asked)} s`, act: ["Stop", () => own.abort(STOPPED)] };
  if (left === 0 || left === undefined) return {};
  return { text: left === null || !known?.length ? "not compared" : `${counted(left, "schedules")} not compared`, act: ["Compare", () => compareOthers(Array(5).fill(10))] };
}

const betterOf = (index) => (isLive(index) && chartFor(index).step ? adviceOn(index, runs[index].good) : {});   // { text, acts: [text of a button, what it does] } of a schedule; no verdict before its number

const sizesIn = ({ devices, microbatches }) => `${devices},${microbatches}`, sizesOf = (index) => { const { common, chart } = runs[index].good; return state.schedules[index].csv === undefined ? sizesIn(common) : chart.title.replaceAll(",", "").match(/\d+(?= (device|microbatch))/g)?.join(); };   // a file has its own
const isSized = (index) => sizesOf(index) === sizesIn(runs[index].good.common);
function adviceOn(index, good) {
  if (!isSized(index)) return { text: "other sizes: not compared" };
  const { chart, lower_bound: bound } = good, is_least = bound.gap < 5e-4, above = `${short(chart.makespan - bound.seconds, chart.step)} above its bound`;
  const { capacity, most, unit } = chart.memory, than = (step) => share(step, chart.step);
  const answered = faster.key === keyOf(state.common), placeOf = (one) => state.schedules.findIndex(({ schedule }) => schedule === one.schedule), known = answered ? faster.found : [];
  const number = (bytes) => Number(unit === "bytes" ? (bytes / 1e9).toPrecision(3) : bytes.toFixed(1)), held = unit === "bytes" ? " GB" : " act.";
  const memory = (peak) => (Math.abs(peak / most - 1) < 0.01 ? "same memory" : `peak ${number(most)} → ${number(peak)}${held}`);
  const is_over = capacity && most > capacity * (1 + 1e-9), fits = (one) => one.peak <= (is_over ? capacity : most) * (1 + 1e-9), why = (one) => (!one.runs ? ", no framework runs it" : known.some((other) => !other.runs && other.step < one.step * (1 - 5e-4) && fits(other)) ? ", the fastest that a framework runs" : "");
  const live = all().filter((at) => isLive(at) && isSized(at)).map((at) => runs[at].good.chart), matched = (one) => live.some(({ step, memory }) => step <= one.step * (1 + 1e-4) && memory.most <= one.peak * (1 + 1e-4));   // by what is on the page
  const best = (wanted) => { const found = known.filter(wanted), others = found.filter((one) => placeOf(one) < 0 && !matched(one)), above = found.find((one) => placeOf(one) >= 0 && placeOf(one) !== index); return others.find((one) => one.runs) ?? (above?.runs ? above : others[0] ?? above); };   // what a framework runs comes first, and what is not on the page
  const named = (one) => `${one.schedule}${placeOf(one) < 0 ? "" : placeOf(one) < index ? " (above)" : " (below)"}`, add = (one) => (placeOf(one) < 0 ? [adding({ schedule: one.schedule })] : []);
  if (is_over) {
    const other = best((one) => fits(one) && one.step < 2 * chart.step);   // a step of twice the length is no help
    return !other ? { text: `${number(most - capacity)}${held} ${unit === "bytes" ? "more than usable" : "over the limit"}` } : { text: `${named(other)} fits: ${number(most - other.peak)}${held} less, step ${than(other.step)}${why(other)}`, acts: add(other) };
  }
  const key = searchKey(index), search = searches.get(key), found = search?.best && search.best.step < chart.step * (1 - 1e-4) ? search.best : null;
  const step = found && `${short(found.step, chart.step)} (${than(found.step)})`;
  if (search?.controller) return { text: `searching, ${secondsSince(search.begun)} s${found ? `: ${step}` : ""}`, acts: [["Stop", () => stopSearches([key])]] };
  const searched = found && { csv: found.csv, name: `${nameOf(index)} searched` }, none = search && !found ? search.fault ?? `nothing faster found${search.ended ? `: the search ended after ${search.seconds.toFixed(1)} s` : ` in ${Math.round(search.seconds)} s`}` : "";
  const at = found ? state.schedules.findIndex(({ csv }) => csv === found.csv) : -1, is_shown = at >= 0;
  const other = best((one) => one.step < chart.step * (1 - 1e-4) && fits(one));
  if (found && !(other?.step < found.step)) return { text: `${is_shown ? `${nameOf(at)} (${at < index ? "above" : "below"}): ${than(found.step)}` : `a search found ${step}`}, ${memory(found.peak)}`, acts: is_shown ? [] : [adding(searched)] };
  const searching = found ? (is_shown ? [] : [[`${adding(searched)[0].replace(/^Replace.*/, "$& by")} the search's: ${than(found.step)}`, () => addFound(searched)]]) : gone || (is_least && !search) || state.schedules[index].csv !== undefined || search?.fault || search?.ended ? [] : [search ? ["Search on", () => searchFor(index, [50])] : ["Search", () => searchFor(index, SLICES)]];
  const uneven = imbalanceOf(good.cause), least = other?.step ?? chart.step;
  if (!search && uneven > 1 - least / chart.step) {
    if (good.evened === undefined) tryEvened(index, good);
    const { evened } = good, text = `imbalance ${(100 * uneven).toFixed(1)} %`;
    if (!evened) return { text, acts: searching };
    if (evened < least * (1 - 5e-4)) return { text: `${text}, optimal partition: ${than(evened)}`, acts: [["Use it", () => put(index, PARTITION, "optimal")], ...searching] };
  }
  if (other) return { text: `${none || (is_least ? "at its bound" : above)} · ${named(other)}: ${than(other.step)}${why(other)}, ${memory(other.peak)}`, acts: [...add(other), ...searching] };
  if (is_least || none) return { text: none || (answered && faster.left === 0 && known.length ? "nothing faster in this memory" : "at its bound"), acts: searching };
  return { text: above, acts: searching };
}
async function tryEvened(index, good) {   // the step with the partition that is optimal; infinity if it does not fit
  good.evened = 0;
  const { common } = state, response = await ask("/api/simulate", { ...caseOf(index), changes: { ...common.changes, [PARTITION]: "optimal" } }).catch(() => null), found = await response?.json();
  const { step, memory: { most, capacity } = {} } = found?.chart ?? {};
  good.evened = step && !(capacity && most > capacity * (1 + 1e-9)) ? step : Infinity;
  viewer.mark(marks());
}
const PARTITION = "layout.partition";
function imbalanceOf([cause, share]) {   // the share of all devices' time that it costs, if it is the largest cause of idle time and a config has another partition to try
  const key = offer.configs[state.common.config]?.keys.find((one) => one.key === PARTITION), now = state.common.changes?.[PARTITION] ?? key?.value;
  return cause === "imbalance" && key && ["even", null].includes(now) ? share : 0;
}
const secondsSince = (begun) => Math.floor((performance.now() - begun) / 1000);

const slowest = () => all().filter((index) => index !== baseOf()).sort((a, b) => (runs[b].good?.chart.step || 0) - (runs[a].good?.chart.step || 0))[0];   // but the base
const adding = (one) => [state.schedules.length < MOST ? "Add" : `Replace ${nameOf(slowest())}`, () => addFound(one), { title: `${one.name || one.schedule} as a schedule of this page` }];
function addFound(one) {   // as the next schedule; of four it replaces the slowest
  let at = state.schedules.length;
  if (at >= MOST) {
    at = slowest();
    notice = `${one.name || one.schedule} took the place of ${nameOf(at)}, the slowest but the base`; undoes = true;
  }
  state.schedules[at] = one;
  showAll();
}

async function searchFor(index, slices) {   // each slice is a longer search; it stops at a change, or when asked to
  const one = searchKey(index), asks = caseOf(index), { seconds: bound } = runs[index].good.lower_bound, before = searches.get(one), search = { controller: new AbortController(), begun: performance.now(), seconds: before?.seconds || 0, best: before?.best };
  searches.set(one, search);
  ticks(() => searches.get(one) === search && search.controller);
  for (const seconds of slices) {
    try {
      const response = await ask("/api/search", { ...asks, seconds }, search.controller.signal), found = await response.json();
      if (found.faults) { search.fault = found.faults[0].text; break; }
      search.seconds += found.seconds;
      search.ended = found.seconds < 0.9 * seconds;
      if (!search.best || found.step < search.best.step) search.best = found;
      if (search.ended || found.step <= bound * 1.0005) break;
    } catch { break; }
  }
  search.controller = null;
  if (searches.get(one) === search) viewer.mark(marks());
}

function stopSearches(keys = [...searches.keys()].filter((key) => !all().some((index) => searchKey(index) === key))) {   // after a change those of what is no longer on the page; what they found stays
  for (const key of keys) { searches.get(key).controller?.abort(); if (!searches.get(key).best) searches.delete(key); }
}
