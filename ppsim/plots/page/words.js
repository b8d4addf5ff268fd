// The texts of a chart: times that add up, the names of items, and what they waited for.
function unitFor(seconds) {
  const units = [[1, "s"], [1e3, "ms"], [1e6, "µs"], [1e9, "ns"]];
  return units.find(([factor]) => seconds * factor >= 0.9995) || (seconds > 0 ? units[3] : units[0]);
}

function seconds(value) {
  const [factor, symbol] = unitFor(Math.abs(value));
  return `${Number((value * factor).toPrecision(5)).toLocaleString("en", { maximumFractionDigits: 6 })} ${symbol}`;
}

const percent = (part) => `${(100 * part).toFixed(1)} %`;
const signed = (part) => (Math.abs(part) < 5e-4 ? "±0.0 %" : `${part < 0 ? "−" : "+"}${percent(Math.abs(part))}`);
const seconds1 = (value) => {
  const [factor, symbol] = unitFor(until), places = until > 0 ? Math.max(2 - Math.floor(Math.log10(until * factor)), 1) : 1;
  return `${(value * factor).toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places })} ${symbol}`;
};
const inUnit = (value) => { const [factor, symbol] = unitFor(until); return `${Number((value * factor).toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 })} ${symbol}`; };
const byteUnit = (value) => [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([one]) => value >= one) || [1, "B"];
const CAUSES = ["fill", "drain", "dependency", "recompute", "imbalance", "transfer", "queue", "sharding", "reload", "optimizer", "jitter", "overhead"];

function amount(value, unit) {
  if (unit !== "bytes") return `${Number(value.toPrecision(4))} ${unit}`;
  const [size, symbol] = byteUnit(value);
  return `${Number((value / size).toPrecision(4))} ${symbol}`;
}

function times(from, to, tick) {   // start, length and end in one unit and at one precision, so that they add up
  const short = to > from && to - from < to / 100;
  const [factor, symbol] = unitFor(short ? Math.max(to - from, to / 10) : to);
  const digits = (time) => -Math.floor(Math.log10(time * factor));
  const places = Math.max(Math.min(to > from ? digits(to - from) + 3 : 6, tick > 0 ? digits(tick) - 1 : 6, 12), 0);
  const [first, last] = [from, to].map((time) => Math.round(time * factor * 10 ** places));
  const text = (count) => `${(count / 10 ** places).toLocaleString("en", { maximumFractionDigits: places })} ${symbol}`;
  return `start ${text(first)}, length ${text(last - first)}, end ${text(last)}`;
}

function nameOf(chart, item) {
  if (chart.isBox(item)) {
    const names = chart.parts(item).map(([letter, stage, microbatch]) => `${stage}${letter}${microbatch}`);
    return names.length > 1 ? `(${names.join(";")})OVERLAP_F_B` : names[0];
  }
  if (chart.isTransfer(item)) {
    const [letter, stage, microbatch] = chart.parts(chart.source(item))[0];
    return `${stage}SEND_${letter === "F" ? "F" : "B"}${microbatch}`;
  }
  const part = chart.partOf(item), of = (word) => chart.column[`${part.sort} ${word}`][item - part.first];
  return (part.staged ? of("stage") : "") + (part.names.length ? part.names[of("kind")] : part.name) + (part.numbered ? of("microbatch") : "");
}

function titleOf(chart, item) {
  if (chart.isTransfer(item)) return "transfer";
  return chart.isBox(item) ? chart.kindOf(item).title : chart.partOf(item).title;
}

function placeOf(chart, item) {
  if (chart.isTransfer(item)) return `from device ${chart.deviceOf(item)} to device ${chart.deviceOf(chart.target(item))}`;
  const device = `device ${chart.deviceOf(item)}`;
  if (!chart.isBox(item)) return device;
  const local = chart.column.local[item], later = local ? ` (${["", "second", "third", "fourth"][local] || `${local + 1}th`} of its device)` : "";
  const step = ([letter, stage, microbatch]) => (letter === "F" && chart.ahead?.[microbatch] > stage ? " of the next step" : "");
  const parts = chart.parts(item).map((part) => `stage ${part[1]}${chart.stages?.[part[1]] ? ` of ${chart.stages[part[1]]}` : ""}${later}, ${chart.numbering} ${part[2]}${step(part)}`);
  return `${device}, ${parts.join(" and ")}${chart.column.reverse?.[item] ? ", entered at the other end" : ""}`;
}

function waitedFor(chart, item) {
  const before = chart.before(item);
  if (before < 0) return "nothing, the first of its device";
  const ended = `which ended at ${seconds(chart.end(before))}`, name = nameOf(chart, before);
  if (chart.isTransfer(before) && chart.isBox(item))
    return chart.target(before) === item
      ? `its input from ${nameOf(chart, chart.source(before))} on device ${chart.deviceOf(before)}, whose transfer ended at ${seconds(chart.end(before))}`
      : `${name}, a transfer that holds up its device, ${ended}`;
  if (chart.isTransfer(before)) return `${name}, the transfer before it in its queue, ${ended}`;
  if (chart.deviceOf(before) !== chart.deviceOf(item)) return `${name} on device ${chart.deviceOf(before)}, ${ended}`;
  return chart.isBox(before) && chart.isBox(item) ? `the device, busy with ${name}` : `${name}, ${ended}`;
}

const linesOf = (chart, item) => [
  `${nameOf(chart, item)}   ${titleOf(chart, item)}`,
  placeOf(chart, item),
  times(chart.start(item), chart.end(item), chart.tick),
  `started after: ${waitedFor(chart, item)}`,
  ...measuredLines(chart, item),
];

function mixedLines(chart, device, time) {   // boxes narrower than two pixels: the shares of the pixel's time
  const half = (view.t1 - view.t0) / innerWidth() / 2, from = Math.max(time - half, 0), to = Math.min(time + half, chart.makespan);
  const parts = [...sharesAt(chart, device, from, to)].filter(([, part]) => part > 0);
  return [`device ${device}`, times(from, to, chart.tick), ...parts.map(([title, part]) => `${title}: ${percent(part / (to - from))}`)];
}

function idleLines(chart, device, time) {
  const [first, last] = chart.boxesOf(device), next = chart.firstEndingAfter(device, time);
  const from = next > first ? chart.end(next - 1) : 0, to = next < last ? chart.start(next) : chart.makespan;
  const stepping = chart.lanes.some((part) => part.sort === "optimizer steps" && chart.start(chart.spansOf(part, device)[0]) >= time);
  const then = next < last ? `then ${nameOf(chart, next)}, which waited for: ${waitedFor(chart, next)}`
    : stepping ? "then the optimizer step" : "nothing more to do";
  return ["idle", `device ${device}`, times(from, to, chart.tick), then, ...(next < last ? slowLines(chart, next, "stalls") : [])];
}

function ledgerLines(chart, device) {
  const causes = Object.entries(chart.ledger).filter(([, idle]) => idle[device] > 0);
  return [`device ${device}: idle ${percent(chart.idleShare(device))} of the step`, ...(chart.slow?.[device] ? [`slow: ${chart.slow[device]}`] : []),
    ...causes.map(([cause, idle]) => `${cause}: ${seconds(idle[device])}, ${percent(idle[device] / chart.makespan)}`)];
}

function memoryLines(chart, device, time) {
  const { unit, capacity, device: whole, peaks } = chart.memory;
  const held = chart.level(device, time), words = (value) => (unit === "bytes" ? amount(value, unit) : `${amount(value, "")}activation${value === 1 ? "" : "s"}`);
  const lines = [`device ${device}: ${words(held)} at ${seconds1(time)}, ${held === peaks[device] ? "its peak" : `peak ${amount(peaks[device], unit === "bytes" ? unit : "").trim()}`}`];
  if (capacity) lines.push(`${whole ? "usable" : "limit"}: ${words(capacity)}${whole ? ` of ${amount(whole, unit)}` : ""}${peaks[device] <= capacity ? "" : peaks[device] <= whole ? ": tight" : ": does not fit"}`);
  return lines;
}

function stepLine(chart, chain, at) {   // a step of the critical path, and what it waited for
  const item = chain[at], before = chain[at - 1];
  const why = before === undefined ? "the first" : `waits for ${nameOf(chart, before)} (${chart.isTransfer(before) ? "transfer" : titleOf(chart, before)}, ${inUnit(chart.end(before) - chart.start(before))})`;
  return `critical path${charts.length > 1 ? ` of ${chart.short}` : ""}, step ${at + 1} of ${chain.length}: ${nameOf(chart, item)} ${before === undefined ? "is " : ""}${why}`;
}

function chainLine(chart, chain) {   // a summary of the chain: steps, seconds in actions, in transfers and between them
  const sum = (wanted) => chain.filter(wanted).reduce((total, item) => total + chart.end(item) - chart.start(item), 0);
  const moved = sum((item) => chart.isTransfer(item)), worked = sum((item) => !chart.isTransfer(item));
  const all = chart.end(chain.at(-1)) - chart.start(chain[0]), rest = all - moved - worked;
  const waits = rest > all * 1e-6 ? `, ${seconds(rest)} between them` : "";
  return `back to the start: ${chain.length} steps, ${seconds(worked)} in actions, ${seconds(moved)} in transfers${waits}`;
}
