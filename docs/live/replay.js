// A schedule's replay in the browser: the compiled engine's additions under `async`, in its order, and the columns that the viewer draws.
const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

async function inflated(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function listsOf(family) {   // the lists of all sizes of a family: { "4,8": { kind, stage, microbatch, joined, offsets, stages, slices } }
  const bytes = await inflated(family.packed), found = {}, all = family.sizes.reduce((sum, { offsets }) => sum + offsets.at(-1), 0);
  let from = 0;
  for (const { p, m, stages, slices, offsets } of family.sizes) {
    const rows = offsets.at(-1), microbatch = new Int32Array(rows), take = (plane) => bytes.subarray(plane * all + from, plane * all + from + rows);
    const low = take(2), high = take(3), code = take(0);
    for (let row = 0, number = 0; row < rows; row++) microbatch[row] = number = (number + low[row] + 256 * high[row]) & 0xFFFF;   // differences
    found[`${p},${m}`] = { p, m, stages, slices, offsets, microbatch, stage: take(1), kind: code.map((one) => one & 15), joined: code.map((one) => one >> 4), family };
    from += rows;
  }
  return found;
}

function devicesOf({ offsets }) {
  const device = new Uint8Array(offsets.at(-1));
  for (let one = 0; one + 1 < offsets.length; one++) device.fill(one, offsets[one], offsets[one + 1]);
  return device;
}

function sourcesOf(lists, device) {   // the row on another device whose result a row needs, or -1; list order settles the rest
  const { kind, stage, microbatch, stages } = lists, [F, B, I] = KIND_CODES, most = microbatch.reduce((one, other) => Math.max(one, other), 0) + 1;
  const forward = new Int32Array(stages * most).fill(-1), backward = forward.slice();
  kind.forEach((one, row) => { if (one === F) forward[stage[row] * most + microbatch[row]] = row; else if (one === B || one === I) backward[stage[row] * most + microbatch[row]] = row; });
  return Int32Array.from(kind, (one, row) => {
    const at = stage[row] * most + microbatch[row], first = stage[row] === 0, last = stage[row] === stages - 1;
    const needed = one === F ? (first ? -1 : forward[at - most]) : one === B || one === I ? (last ? -1 : backward[at + most]) : -1;
    return needed >= 0 && device[needed] !== device[row] ? needed : -1;
  });
}

function secondsOf(lists, { F, I, W, slot }) {   // by kind; a slot's under "slot", null without a fused kernel
  const scale = lists.p / lists.stages, part = 1 / lists.slices, length = (whole) => (lists.slices > 1 ? whole * scale * part : whole * scale);
  return { kinds: [length(F), length(I + W), length(I), length(W), length(F)], slot: slot === null ? null : slot * scale };
}

function replay(lists, costs) {   // { start, end, busy, source, device }: float64 seconds per row, and per device in computing
  const { kind, joined, offsets } = lists, rows = kind.length, device = devicesOf(lists), source = sourcesOf(lists, device);
  const { kinds, slot } = secondsOf(lists, costs), start = new Float64Array(rows), end = new Float64Array(rows).fill(-1);
  const position = offsets.slice(0, -1), free = new Float64Array(lists.p), busy = new Float64Array(lists.p);
  for (let moved = true; moved;) {
    moved = false;
    for (let one = 0; one < lists.p; one++) for (let row = position[one]; row < offsets[one + 1]; row = position[one]) {
      const stop = slot !== null && joined[row + 1] && row + 1 < offsets[one + 1] ? row + 2 : row + 1;
      let begin = free[one], waits = false;
      for (let part = row; part < stop; part++) if (source[part] >= 0) {
        if (end[source[part]] < 0) waits = true; else begin = Math.max(begin, end[source[part]] + costs.c);
      }
      if (waits) break;
      const length = stop > row + 1 ? slot : kinds[kind[row]];
      free[one] = begin + length; busy[one] += length;
      for (let part = row; part < stop; part++) { start[part] = begin; end[part] = free[one]; }
      position[one] = stop; moved = true;
    }
  }
  return { start, end, busy, source, device };
}

// The viewer's data.

function idleOf(lists, boxes, run, c) {   // idle seconds per device by cause, traced back as ppsim.analysis.gaps does
  const { start, end, source, device } = run, { row } = boxes, p = lists.p, makespan = end.reduce((one, other) => Math.max(one, other), 0);
  const found = { fill: new Float64Array(p), drain: new Float64Array(p), dependency: new Float64Array(p), recompute: new Float64Array(p), transfer: new Float64Array(p) };
  const arrivalOf = (box) => Math.max(...boxes.rows[box].map((one) => (source[one] < 0 ? -Infinity : end[source[one]])));
  const before = (box) => (box > 0 && device[row[box - 1]] === device[row[box]] ? end[row[box - 1]] : -Infinity);
  for (let box = 0; box < row.length; box++) {
    const own = device[row[box]], begin = before(box);
    if (begin === -Infinity) { found.fill[own] = start[row[box]]; continue; }
    let at = box, until = start[row[box]];
    const take = (cause, back) => { const to = Math.min(Math.max(back, begin), until); found[cause][own] += until - to; until = to; };
    while (until > begin && arrivalOf(at) > -Infinity) {   // over the transfer, then over what its sender computed without a pause
      const needed = boxes.rows[at].reduce((best, one) => (source[one] >= 0 && (best < 0 || end[source[one]] > end[best]) ? source[one] : best), -1);
      take("transfer", end[needed]);
      for (at = boxes.ofRow[needed]; ; at--) {
        take(lists.kind[row[at]] === KIND_CODES[4] ? "recompute" : "dependency", start[row[at]]);
        if (until <= begin || before(at) < until) break;
      }
    }
  }
  for (let one = 0; one < p; one++) found.drain[one] = makespan - (lists.offsets[one + 1] > lists.offsets[one] ? end[lists.offsets[one + 1] - 1] : 0);
  return Object.fromEntries(Object.entries(found).filter(([, idle]) => idle.some((one) => one > 1e-12 * makespan)).map(([cause, idle]) => [cause, [...idle]]));
}

function boxesOf(lists, fused) {   // row: the first row of each box; rows: its one or two rows; ofRow: the box of a row
  const row = [], rows = [], ofRow = new Int32Array(lists.kind.length);
  for (let one = 0; one < lists.kind.length; one++) {
    if (fused && lists.joined[one]) rows.at(-1).push(one); else { row.push(one); rows.push([one]); }
    ofRow[one] = row.length - 1;
  }
  return { row, rows, ofRow, slot: rows.map((one) => one.length > 1) };
}

function placesOf({ kind, stage, microbatch }, device) {   // the number of a row's stage on its device and way, and its way, as ppsim.plots.boxes.local_stage
  const entry = new Map();
  kind.forEach((one, row) => { if (one === KIND_CODES[0] && stage[row] === 0) entry.set(microbatch[row], device[row]); });
  const first = Math.min(...entry.values()), reverse = microbatch.map((one) => Number((entry.get(one) ?? first) !== first)), held = new Map();
  stage.forEach((one, row) => { const group = 2 * device[row] + reverse[row]; if (!held.has(group)) held.set(group, new Set()); held.get(group).add(one); });
  for (const [group, stages] of held) held.set(group, new Map([...stages].sort((one, other) => one - other).map((one, number) => [one, number])));
  return { reverse, local: Uint32Array.from(stage, (one, row) => held.get(2 * device[row] + reverse[row]).get(one)) };
}

function memoryOf(lists, run, ticks) {   // step curves of live activations, in microbatches through a device share
  const { kind, stage, microbatch, offsets, family } = lists, share = lists.p / lists.stages / lists.slices, recomputed = new Set();
  const times = [], levels = [], ends = [0], peaks = [];
  kind.forEach((one, row) => { if (one === KIND_CODES[4]) recomputed.add(stage[row] * 65536 + microbatch[row]); });
  for (let one = 0; one < lists.p; one++) {
    let level = 0, most = 0;
    times.push(0); levels.push(0);
    for (let row = offsets[one]; row < offsets[one + 1]; row++) {
      const short = kind[row] === KIND_CODES[0] && recomputed.has(stage[row] * 65536 + microbatch[row]);
      for (const [time, change] of [[run.start[row], short ? family.stored : family.adds[kind[row]]], [run.end[row], -family.frees[kind[row]]]]) {
        if (!change) continue;
        level += change; most = Math.max(most, level);
        if (times.at(-1) !== ticks(time) || times.length === ends.at(-1) + 1) { times.push(ticks(time)); levels.push(0); }   // all changes at one time count together
        levels[levels.length - 1] = level * share;
      }
    }
    ends.push(times.length); peaks.push(most * share);
  }
  const highest = Math.max(...peaks) || 1;
  return { peaks, highest, offsets: Uint32Array.from(ends), time: Uint32Array.from(times), level: Uint32Array.from(levels, (one) => Math.round(one / highest * 65535)) };
}

const median = (sorted) => (sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : 0), rising = (one, other) => one - other;

function periodOf(lists, start, device) {   // seconds after which stages usually repeat an action (Boxes.period)
  const last = new Map(), apart = new Map();
  start.forEach((time, row) => {
    const kind = lists.kind[row], name = `${kind} ${device[row]} ${lists.stage[row]}`;
    if (last.has(name)) (apart.get(kind) || apart.set(kind, []).get(kind)).push(time - last.get(name));
    last.set(name, time);
  });
  return Math.max(0, ...[...apart.values()].map((one) => median(one.sort(rising))));
}

function chartData(name, lists, costs) {   // what ppsim.plots.page_data.page_data returns, with its columns unpacked
  const run = replay(lists, costs), { start, end, source, device } = run, fused = costs.slot !== null && lists.joined.some((one) => one);
  if (end.some((one) => one < 0)) throw new Error(`${name}: devices wait for each other`);
  const boxes = boxesOf(lists, fused), { row, rows, ofRow, slot } = boxes, { reverse, local } = placesOf(lists, device);
  const makespan = end.reduce((one, other) => Math.max(one, other), 0), tick = makespan / 4294967295 || 1, ticks = (time) => Math.round(time / tick);
  const of = (values) => Uint32Array.from(row, (one) => values[one]), second = (values) => Uint32Array.from(rows, (one) => values[one.at(-1)]);
  const codes = row.map((one, box) => (slot[box] ? KIND_CODES.length - 1 : KIND_CODES.indexOf(lists.kind[one]))), present = KINDS.filter((_, code) => codes.includes(code));
  const length = Float64Array.from(row, (one) => end[one] - start[one]), taking = [...length].filter((one) => one > 0).sort(rising);
  let quarter = taking.reduce((sum, one) => sum + one, 0) / 4;
  const consumers = [...source.keys()].filter((one) => source[one] >= 0), inputs = new Map();
  consumers.forEach((one, number) => { if (!inputs.has(ofRow[one])) inputs.set(ofRow[one], []); inputs.get(ofRow[one]).push(number); });
  const cause = row.map((one, box) => {   // codes of data.js: the device's row before, or the first or second input
    const first = box === 0 || device[row[box - 1]] !== device[one], mine = inputs.get(box) || [], arrivals = mine.map((number) => end[source[consumers[number]]] + costs.c);
    const best = arrivals.indexOf(Math.max(...arrivals));
    return best >= 0 && (first || arrivals[best] > end[row[box - 1]]) ? INPUT_CODE + best : first ? 0 : 1;
  });
  const memory = memoryOf(lists, run, ticks), idle = 1 - run.busy.reduce((sum, one) => sum + one, 0) / (lists.p * makespan || 1);
  const columns = {
    offsets: Uint32Array.from(lists.offsets, (one) => (one < ofRow.length ? ofRow[one] : row.length)),
    start: Uint32Array.from(row, (one) => ticks(start[one])), length: Uint32Array.from(row, (one) => ticks(end[one]) - ticks(start[one])),
    kind: Uint8Array.from(codes, (code) => present.indexOf(KINDS[code])), local: of(local), stage: of(lists.stage), microbatch: of(lists.microbatch),
    forward_first: Uint8Array.from(row, (one) => Number(lists.kind[one] === KIND_CODES[0])), other_stage: second(lists.stage), other_microbatch: second(lists.microbatch),
    ...(reverse.some((one) => one) ? { reverse: of(reverse) } : {}),
    "transfer target": Uint32Array.from(consumers, (one) => ofRow[one]), "transfer source": Int32Array.from(consumers, (one) => ofRow[source[one]] - ofRow[one]),
    "transfer wait": new Uint32Array(consumers.length), "transfer length": Uint32Array.from(consumers, (one) => ticks(end[source[one]] + costs.c) - ticks(end[source[one]])),
    cause: Uint8Array.from([...cause, ...consumers.map(() => 1)]),
    "memory offsets": memory.offsets, "memory time": memory.time, "memory level": memory.level,
  };
  const ledger = idleOf(lists, boxes, run, costs.c), title = `${name}, ${lists.p} devices, ${lists.m} microbatches`;
  return {
    title, short: name, run: "transport async", devices: lists.p, makespan, step: makespan, bound: null, interval: "", bubble: idle, idle, tick,
    box: median(taking), narrow: taking.find((one) => (quarter -= one) <= 0) || 0, period: periodOf(lists, start, device) || taking[0] || 0, areas: [], longest: taking.at(-1) || 0,
    locals: 1 + local.reduce((one, other) => Math.max(one, other), 0), slices: lists.slices, numbering: lists.slices > 1 ? "slice" : "microbatch",
    instants: length.some((one) => one === 0), band: [0, 1], lanes: [], kinds: present, ledger,
    causes: Object.fromEntries(Object.keys(ledger).map((name) => [name, CAUSE_TEXTS[name]])),
    memory: { unit: "microbatches through one device share", most: memory.highest, peaks: memory.peaks, capacity: null },
    last: ofRow[end.indexOf(makespan)], slow: {}, unpacked: columns, times: { start, end },
  };
}
