// One timeline as columns, unpacked from the page, with queries.
const extra = {};   // what measured.js adds: `differences`, `draw`, `lines`, `legend`, `build`, `dress`, `step`, `keep`
const NONE = 0, BEFORE = 1, INPUT = 2, LISTED = 4;   // codes of ppsim.plots.page_data

const seen = new WeakMap();   // data -> its chart, so that unchanged data are unpacked once
async function unpacked(data) {
  if (!seen.has(data)) seen.set(data, await chartOf(data));
  return seen.get(data);
}

async function chartOf(data) {
  if (data.unpacked) return new Chart(data, data.unpacked);   // made by a page itself
  const packed = Uint8Array.from(atob(data.packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const columns = {};
  let at = 0;
  for (const [name, count, size, summed] of data.columns) {   // byte plane by byte plane, low bytes first
    const column = size > 1 ? new Uint32Array(count) : new Uint8Array(count);
    for (let plane = 0; plane < size; plane++)
      for (let i = 0; i < count; i++) column[i] |= bytes[at++] << (8 * plane);
    if (summed) for (let i = 1; i < count; i++) column[i] += column[i - 1];
    columns[name] = column;
  }
  for (const before of ["", ...data.lanes.map((part) => `${part.sort} `)]) columns[`${before}start`] = startsOf(columns, before);
  return new Chart(data, columns);
}

function startsOf(columns, before) {   // a start is the end of the item before it plus the gap, which is negative if a device's first item starts earlier
  const gap = columns[`${before}gap`], length = columns[`${before}length`];
  for (let i = 1; i < gap.length; i++) gap[i] += gap[i - 1] + length[i - 1];
  return gap;
}

// One numbering has all items: first the boxes, then the transfers, then the spans of each lane.
class Chart {
  constructor(about, columns) {
    Object.assign(this, about, { column: columns, boxes: columns.start.length, inputs: new Int32Array(columns.start.length) });
    this.bound ??= Math.max(...Object.values(this.bounds || {}), 0);
    this.transfers = columns["transfer target"].length;
    this.begins = new Set(columns.begins);
    this.digits = numberOf(this, columns.microbatch.reduce((most, one) => Math.max(most, one), 0)).length;   // of the longest number
    for (let one = this.transfers - 1; one >= 0; one--) this.inputs[columns["transfer target"][one]] = this.boxes + one;
    let first = this.boxes + this.transfers;
    for (const part of this.lanes) {
      part.first = first;
      first += part.count = columns[`${part.sort} start`].length;
    }
    this.listed = new Map();
    for (let item = 0, at = 0; item < first; item++)
      if (columns.cause[item] === LISTED) this.listed.set(item, columns.listed[at++]);
  }

  isBox(item) { return item < this.boxes; }
  isTransfer(item) { return item >= this.boxes && item < this.boxes + this.transfers; }
  partOf(item) { return this.lanes.find((part) => item >= part.first && item < part.first + part.count); }
  kindOf(box) { return this.kinds[this.column.kind[box]]; }
  source(transfer) { return this.target(transfer) + (this.column["transfer source"][transfer - this.boxes] | 0); }
  target(transfer) { return this.column["transfer target"][transfer - this.boxes]; }

  startTicks(item) { return this.isTransfer(item) ? this.endTicks(this.source(item)) + (this.column["transfer wait"][item - this.boxes] | 0) : this.ticks(item, "start"); }
  lengthTicks(item) { return this.isTransfer(item) ? this.column["transfer length"][item - this.boxes] : this.ticks(item, "length"); }
  ticks(item, word) {   // of a box or of a span of a lane
    if (this.isBox(item)) return this.column[word][item];
    const part = this.partOf(item);
    return this.column[`${part.sort} ${word}`][item - part.first];
  }

  endTicks(item) { return this.startTicks(item) + this.lengthTicks(item); }
  start(item) { return this.startTicks(item) * this.tick; }
  end(item) { return this.endTicks(item) * this.tick; }
  duration(item) { return this.end(item) - this.start(item); }

  deviceOf(item) {   // for a transfer, the sender
    if (this.isTransfer(item)) return this.deviceOf(this.source(item));
    const part = this.isBox(item) ? null : this.partOf(item);
    const offsets = this.column[part ? `${part.sort} offsets` : "offsets"], place = part ? item - part.first : item;
    return firstWhere(0, this.devices - 1, (device) => offsets[device + 1] > place);
  }

  before(item) {   // the predecessor of the item that ended last, or -1
    const cause = this.column.cause[item];
    if (cause === NONE) return -1;
    if (cause === LISTED) return this.listed.get(item);
    if (!this.isBox(item)) return this.source(item);
    return cause === BEFORE ? item - 1 : this.inputs[item] + cause - INPUT;
  }

  chain(item) {   // from the start to the item; each waited for the one before it
    const found = [];
    for (let one = item; one >= 0 && found.length <= this.column.cause.length; one = this.before(one)) found.push(one);
    return found.reverse();
  }

  boxesOf(device) { return [this.column.offsets[device], this.column.offsets[device + 1]]; }
  spansOf(part, device) {
    const offsets = this.column[`${part.sort} offsets`];
    return [part.first + offsets[device], part.first + offsets[device + 1]];
  }
  firstEndingAfter(device, time) { return firstWhere(...this.boxesOf(device), (box) => this.end(box) > time); }
  firstStartingAfter(device, time) { return firstWhere(...this.boxesOf(device), (box) => this.start(box) > time); }
  boxAt(device, time) {   // the action that runs at this time, or null
    const box = this.firstEndingAfter(device, time);
    return box < this.boxesOf(device)[1] && this.start(box) <= time ? box : null;
  }

  parts(box) {   // [letter, stage, microbatch] of an action, or of both parts of a slot
    const { stage, microbatch } = this.column;
    if (!this.kindOf(box).slot) return [[this.kindOf(box).letter, stage[box], microbatch[box]]];
    const letters = this.column.forward_first[box] ? ["F", "B"] : ["B", "F"];
    return [[letters[0], stage[box], microbatch[box]],
            [letters[1], this.column.other_stage[box], this.column.other_microbatch[box]]];
  }

  found(text) {   // boxes with this name, such as 3F17, or 3F8.1 of slices; without stage or microbatch, boxes with any
    const [, stage, letter, microbatch] = /^\s*(\d*)\s*([a-z])\s*([\d.]*)\s*$/i.exec(text) || [];
    if (!letter) return [];
    const wanted = (part) => part[0] === letter.toUpperCase() && (!stage || part[1] === +stage) && (!microbatch || part[2] === +microbatch || numberOf(this, part[2]) === microbatch);
    const boxes = [];
    for (let box = 0; box < this.boxes; box++) if (this.parts(box).some(wanted)) boxes.push(box);
    return boxes;
  }

  fillsBetween(device, from, to) {   // seconds of work in idle time
    const part = this.lanes.find(({ sort }) => sort === "fills");
    if (!part) return 0;
    const [first, last] = this.spansOf(part, device);
    let sum = 0;
    for (let item = firstWhere(first, last, (one) => this.end(one) > from); item < last && this.start(item) < to; item++) sum += Math.min(this.end(item), to) - Math.max(this.start(item), from);
    return sum;
  }

  idleShare(device) {
    return sumOf(Object.values(this.ledger).map((seconds) => seconds[device])) / (this.makespan || 1);
  }

  peakBetween(device, from, to) {   // the largest amount of memory of a device between two times
    let most = 0;
    for (let point = this.pointAt(device, from), last = this.pointAt(device, to); point <= last; point++) most = Math.max(most, this.column["memory level"][point]);
    return most / 65535 * this.memory.most;
  }

  level(device, time) { return this.column["memory level"][this.pointAt(device, time)] / 65535 * this.memory.most; }   // memory at a time, in the unit of `this.memory`
  pointAt(device, time) {   // the point of a device's memory that holds at a time
    const [first, end] = this.column["memory offsets"].subarray(device, device + 2);
    return Math.max(firstWhere(first, end, (point) => this.column["memory time"][point] * this.tick > time) - 1, first);
  }
}

function firstWhere(low, high, holds) {   // the first integer from `low` for which `holds` is true, or `high`
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle; else low = middle + 1;
  }
  return low;
}
