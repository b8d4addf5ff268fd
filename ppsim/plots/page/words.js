// The texts of a chart: times that add up, the names of items, and what they waited for.
function unitFor(seconds) {
  if (seconds >= 36000) return [1 / 3600, "h"];
  const units = [[1, "s"], [1e3, "ms"], [1e6, "µs"], [1e9, "ns"]];
  return units.find(([factor]) => seconds * factor >= 0.9995) || (seconds > 0 ? units[3] : units[0]);
}

const formats = [], axisUnit = () => unitFor(view.t1 - view.t0), fixed = (value, places) => (formats[places] ??= new Intl.NumberFormat("en", { minimumFractionDigits: places, maximumFractionDigits: places })).format(value);
const inUnit = (value, [factor, symbol], places) => `${fixed(value * factor, places)} ${symbol}`;
const onAxis = (value, places = 1) => inUnit(value, axisUnit(), places);
const decimals = (number) => (number > 0 ? Math.max(2 - Math.floor(Math.log10(number)), 1) : 1);   // of three digits, one at least

function placesOf(length) {   // one decimal of the axis' unit, and more only where a length has fewer than three digits
  const [factor] = axisUnit(), places = Math.min(decimals(length * factor), 6);
  return Math.max((length * factor).toFixed(places).replace(/0+$/, "").split(".")[1].length, 1);
}

const percent = (part) => `${(100 * part).toFixed(1)} %`;
const signed = (part) => (Math.abs(part) < 5e-4 ? "±0.0 %" : `${part < 0 ? "−" : "+"}${percent(Math.abs(part))}`);
const seconds1 = (value, most = until) => inUnit(value, unitFor(most), decimals(most * unitFor(most)[0]));
const byteUnit = (value) => [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([one]) => value >= one) || [1, "B"];
const precise = (value, most, least = most) => value.toLocaleString("en", { maximumSignificantDigits: most, minimumSignificantDigits: least });
const CAUSES = Object.keys(THEMES.light.causes);   // in the order of the palette

const deviceName = (chart, device) => chart.towers?.[device] ?? `device ${device}`;

function amount(value, unit) {
  if (unit !== "bytes") return `${Number(value.toPrecision(4))} ${unit}`;
  const [size, symbol] = byteUnit(value);
  return `${precise(value / size, 3)} ${symbol}`;
}

function times(from, to) {   // start, length and end at one precision, so that they add up
  const places = placesOf(to - from), [first, last] = [from, to].map((time) => Number(time.toFixed(12)));
  const [factor] = axisUnit(), unit = factor * 10 ** places, length = (Math.round(last * unit) - Math.round(first * unit)) / unit;
  return `start ${onAxis(first, places)}, length ${onAxis(length, places)}, end ${onAxis(last, places)}`;
}

function sentBy(chart, transfer) {   // [letter, stage, microbatch] of the action, or of the part of a slot, whose output is sent
  const wanted = chart.parts(chart.target(transfer)), sent = chart.parts(chart.source(transfer));
  return sent.find(([letter, stage, microbatch]) => wanted.some(([other, next, number]) => number === microbatch && Math.abs(next - stage) === 1 && (other === "F") === (letter === "F"))) ?? sent[0];
}

function nameOf(chart, item) {
  if (chart.isBox(item)) {
    const names = chart.parts(item).map(([letter, stage, microbatch]) => `${stage}${letter}${microbatch}`);
    return names.length > 1 ? `(${names.join(";")})OVERLAP_F_B` : names[0];
  }
  if (chart.isTransfer(item)) {
    const [letter, stage, microbatch] = sentBy(chart, item);
    return `${stage}SEND_${letter === "F" ? "F" : "B"}${microbatch}`;
  }
  const part = chart.partOf(item), of = (word) => chart.column[`${part.sort} ${word}`][item - part.first];
  return (part.staged ? of("stage") : "") + (part.names.length ? part.names[of("kind")] : part.name) + (part.numbered ? of("microbatch") : "");
}

const spokenOf = (chart, item) => nameOf(chart, item).replace(/^\((.+);(.+)\)OVERLAP_F_B$/, "$1 + $2");   // the title names the slot

const titleOf = (chart, item) => (chart.isTransfer(item) ? "transfer" : (chart.isBox(item) ? chart.kindOf(item) : chart.partOf(item)).title);

function placeOf(chart, item) {
  if (chart.isTransfer(item)) return `from ${deviceName(chart, chart.deviceOf(item))} to ${deviceName(chart, chart.deviceOf(chart.target(item)))}`;
  const device = deviceName(chart, chart.deviceOf(item));
  if (!chart.isBox(item)) return device;
  const local = chart.column.local[item], later = local ? ` (${["", "second", "third", "fourth"][local] || `${local + 1}th`} of its device)` : "";
  const step = ([letter, stage, microbatch]) => (letter === "F" && chart.ahead?.[microbatch] > stage ? " of the next step" : "");
  const parts = chart.parts(item).map((part) => `stage ${part[1]}${chart.stages?.[part[1]] ? ` of ${chart.stages[part[1]]}` : ""}${later}, microbatch ${numberOf(chart, part[2]).replace(".", ", slice ")}${step(part)}`);
  return `${device}, ${parts.join(" and ")}${chart.column.reverse?.[item] ? ", entered at the other end" : ""}`;
}

function waitedFor(chart, item, places = placesOf(chart.duration(item))) {
  const before = chart.before(item);
  if (before < 0) return chart.isBox(item) || chart.partOf(item).sort !== "fills" ? "nothing, the first of its device" : "nothing: it fills idle time";
  const ended = `ended at ${onAxis(chart.end(before), places)}`, name = spokenOf(chart, before), device = deviceName(chart, chart.deviceOf(before));
  if (chart.isTransfer(before) && chart.isBox(item))
    return chart.target(before) === item
      ? `its input from ${spokenOf(chart, chart.source(before))} on ${device}, ${chart.duration(before) > 0 ? "whose transfer" : "which"} ${ended}`
      : `${name}, a transfer that holds up its device, which ${ended}`;
  if (chart.isTransfer(before)) return `${name}, the transfer before it in its queue, which ${ended}`;
  if (chart.deviceOf(before) !== chart.deviceOf(item)) return `${name} on ${device}, which ${ended}`;
  return chart.isBox(before) && chart.isBox(item) ? `the device, busy with ${name}` : `${name}, which ${ended}`;
}

const linesOf = (chart, item) => [
  `${spokenOf(chart, item)}   ${titleOf(chart, item)}`,
  placeOf(chart, item),
  times(chart.start(item), chart.end(item)),
  `started after: ${waitedFor(chart, item)}`,
  ...(extra.lines?.(chart, item) || []),
];

function named(chart) { return (chart.named ??= new Map(upTo(chart.boxes).map((box) => [nameOf(chart, box), box]))); }

const slowLines = (chart, item, what) => [chart[what]?.[nameOf(chart, item)]].filter(Boolean);   // why a straggler, or the stall before an action, is marked

function mixedLines(place, x, y) {   // boxes that mix their colours: what the pixel is the mean of
  const { devices: [first, last], from, to, shares } = footprint(place, x, y), name = (device) => deviceName(place.chart, device), sum = sumOf(shares.values()) || 1, places = Math.max(placesOf(to - from) - 1, 1);
  return [first === last ? name(first) : `${name(first).replace("device", "devices")}–${place.chart.towers ? name(last) : last}`, `mean of ${onAxis(from, places)} to ${onAxis(to, places)}`, ...[...new Set([...inOrder(place.chart.kinds).map(({ title }) => title), ...shares.keys()])].map((title) => [title, shares.get(title) || 0]).filter(([, part]) => part >= 5e-4).map(([title, part]) => `${title}: ${percent(part / sum)}`)];
}

function idleLines(chart, device, time) {
  const [first, last] = chart.boxesOf(device), next = chart.firstEndingAfter(device, time);
  const from = next > first ? chart.end(next - 1) : 0, to = next < last ? chart.start(next) : chart.makespan, places = placesOf(to - from);
  const stepping = chart.lanes.some((part) => part.sort === "optimizer steps" && chart.start(chart.spansOf(part, device)[0]) >= time);
  const then = next < last ? `then ${spokenOf(chart, next)}, which waited for: ${waitedFor(chart, next, places)}`
    : stepping ? "then the optimizer step" : "nothing more to do";
  const causes = [...gapsBetween(chart, device, from, to)].sort((one, other) => other[1] - one[1]).map(([cause, part]) => [cause === "dependency" ? dependentOf(chart, device).join(" or ") || cause : cause, onAxis(part, places)]).filter(([, text]) => /[1-9]/.test(text));
  return [`idle${causes.length ? `: ${causes[0][0]}` : ""}`, deviceName(chart, device), times(from, to), ...(causes.length > 1 ? [causes.map(([cause, part]) => `${part} ${cause}`).join(" + ")] : []), then, ...(next < last ? slowLines(chart, next, "stalls") : [])];
}

function ledgerLines(chart, device) {
  const causes = Object.entries(chart.ledger).filter(([, idle]) => idle[device] > 0), places = placesOf(Math.max(...causes.map(([, idle]) => idle[device]), 0));
  return [`${deviceName(chart, device)}: idle ${percent(chart.idleShare(device))} of the step`, ...(chart.slow?.[device] ? [`slow: ${chart.slow[device]}`] : []),
    ...causes.map(([cause, idle]) => `${cause}: ${onAxis(idle[device], places)}, ${percent(idle[device] / chart.makespan)}`)];
}

function totalLines(chart) {   // the idle time of all devices by cause
  const causes = CAUSES.map((cause) => [cause, idlePart(chart, cause)]).filter(([, part]) => part >= 5e-4);
  return [`${chart.short}: idle ${percent(sumOf(causes.map(([, part]) => part)))} of all devices' time`, ...causes.map(([cause, part]) => `${cause}: ${percent(part)}`), ...(isNarrow() && chart.interval ? [`90 % of real steps: ${intervalOf(chart)}`] : [])];
}

function memoryLines(chart, device, time) {
  const { unit, capacity, peaks } = chart.memory, fits = fitOf(chart, peaks[device]);
  const held = chart.level(device, time), words = (value) => (unit === "bytes" ? amount(value, unit) : `${amount(value, "")}activation${amount(value, "") === "1 " ? "" : "s"}`);
  const lines = [`${deviceName(chart, device)}: ${words(held)} at ${onAxis(time)}, ${held === peaks[device] ? "its peak" : `peak ${amount(peaks[device], unit === "bytes" ? unit : "").trim()}`}`];
  return capacity ? [...lines, `${limitText(chart)}${fits && `: ${fits}`}`] : lines;
}

const lengthText = (length) => (length > 0 && length * axisUnit()[0] < 0.0095 ? seconds1(length, length) : onAxis(length, placesOf(length)));   // a short one in a unit of its own

function stepLine(chart, chain, at, number, count) {   // an action of the critical path, and what it waited for
  const item = chain[at], last = chain[at - 1], before = chart.isTransfer(last) && !chart.duration(last) ? chart.source(last) : last;
  const why = before === undefined ? "the first" : `waits for ${spokenOf(chart, chart.isTransfer(before) ? chart.source(before) : before)} (${titleOf(chart, before)}, ${lengthText(chart.end(before) - chart.start(before))})`;
  return `critical path${charts.length > 1 ? ` of ${chart.short}` : ""}, action ${number} of ${count}: ${spokenOf(chart, item)} ${before === undefined ? "is " : ""}${why}`;
}

function chainLine(chart, chain) {   // a summary of the chain: steps, seconds in actions, in transfers and between them
  const sum = (items) => sumOf(items.map((item) => chart.duration(item)));
  const actions = chain.filter((item) => !chart.isTransfer(item)), count = actions.length, worked = sum(actions), moved = sum(chain.filter((item) => chart.isTransfer(item)));
  const all = chart.end(chain.at(-1)) - chart.start(chain[0]), rest = all - moved - worked;
  const waits = rest > all * 1e-6 ? `, ${lengthText(rest)} between them` : "";
  return `line to the step's start: ${count} action${count === 1 ? "" : "s"} of ${onAxis(worked)}${moved > 0 ? `, ${lengthText(moved)} in transfers` : ""}${waits}`;
}
