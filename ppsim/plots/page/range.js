// The panel of a selected range: per schedule a bar of busy time by kind, one of idle time by cause, each on one scale for all, the largest causes, the peak.
const finish = () => Math.min(longest(), until);   // seconds at which the last schedule ends, or is cut
function select(from, to, is_dragged = false) {   // seconds; an empty range lets go; a new panel takes its space after the drag
  hovered = null; hideTip(); if (!chosen) tell("");
  if (!range) kept = charts.map((chart) => partOf(chart).rows);
  range = to > from ? [Math.max(from, 0), Math.min(to, finish())] : null;
  if (is_dragged && parts.range.hidden) { redraw(); return; }
  fillRange();
  refresh();
}

function selectKeyed() {   // by a key: what is seen; or the chosen action, and with the next key all up to the one chosen then
  const { chart, item } = chosen ?? (step < 0 ? {} : hovered), [from, to] = chart ? [chart.start(item), chart.end(item)] : [view.t0, view.t1];
  select(Math.min(from, chart && range ? range[0] : from), Math.max(to, chart && range ? range[1] : to));
  tell(`range ${rangeText()}${chart ? "; r at another action: up to there" : ""}`);
}

function gapsBetween(chart, device, from, to) {   // the idle seconds of a device, by what each gap waited for
  const [first, last] = chart.boxesOf(device), own = new Map(), add = (cause, a, b) => { const part = Math.min(b, to) - Math.max(a, from) - chart.fillsBetween(device, Math.max(a, from), Math.min(b, to)); if (part > 0) own.set(cause, (own.get(cause) || 0) + part); };
  let box = Math.max(chart.firstEndingAfter(device, from), first), reached = box > first ? chart.end(box - 1) : 0;
  for (; box <= last; box++) {
    const begin = box < last ? chart.start(box) : chart.makespan;
    if (begin > reached) {
      if (box === first) add("fill", reached, begin);
      else if (box === last) add(chart.ledger.optimizer?.[device] ? "optimizer" : "drain", reached, begin);
      else {
        const wait = chart.before(box);
        if (wait >= 0 && chart.isTransfer(wait)) {
          const moves = Math.max(chart.start(wait), reached), ready = Math.max(chart.end(chart.source(wait)), reached);
          add("dependency", reached, ready); add("queue", ready, moves); add("transfer", moves, Math.min(chart.end(wait), begin)); add("overhead", Math.max(chart.end(wait), reached), begin);
        } else add(wait >= 0 && !chart.isBox(wait) ? LANE_CAUSES[chart.partOf(wait).sort] : wait >= 0 && chart.deviceOf(wait) !== device ? "dependency" : "overhead", reached, begin);
      }
    }
    if (box < last) reached = Math.max(reached, chart.end(box));
    if (reached > to) break;
  }
  return own;
}

const dependentOf = (chart, device) => ["dependency", "imbalance", "recompute", "jitter"].filter((cause) => chart.ledger[cause]?.[device] > 0);   // a gap does not tell them apart
function idleBetween(chart, device, from, to, found) {   // adds the idle seconds of a device by cause; what a gap does not tell apart as in the device's ledger
  const own = gapsBetween(chart, device, from, to), dependent = dependentOf(chart, device), whole = sumOf(dependent.map((cause) => chart.ledger[cause][device])), waits = own.get("dependency") || 0;
  if (whole > 0 && waits > 0) { own.delete("dependency"); for (const cause of dependent) own.set(cause, waits * chart.ledger[cause][device] / whole); }
  for (const [cause, part] of own) found.set(cause, (found.get(cause) || 0) + part);
}

function leftIdle(chart) {   // the ledger without the idle time that other work fills
  if (chart.lanes.some(({ sort }) => sort === "fills")) {
    const left = {};
    for (let device = 0; device < chart.devices; device++) {
      const found = new Map();
      idleBetween(chart, device, 0, chart.makespan, found);
      for (const [cause, part] of found) (left[cause] ||= new Array(chart.devices).fill(0))[device] = part;
    }
    chart.filled = sumOf(Object.values(left).flat()) / (chart.devices * chart.makespan);
    chart.ledger = left;
  }
  return chart;
}
const LANE_CAUSES = { gathers: "sharding", reductions: "sharding", reloads: "reload", offloads: "reload", collectives: "transfer", "optimizer steps": "optimizer" };

function rangeOf(chart) {   // seconds of all devices by kind and by cause, and the largest amount of memory
  const [from, to] = range, busy = new Map(inOrder(chart.kinds).map(({ title }) => [title, 0])), causes = new Map();
  let peak = 0;
  for (let device = 0; device < chart.devices; device++) {
    for (const [title, part] of sharesAt(chart, device, from, to)) if (title !== "idle") busy.set(title, (busy.get(title) || 0) + part);
    idleBetween(chart, device, from, Math.min(to, chart.makespan), causes);
    peak = Math.max(peak, chart.peakBetween(device, from, to));
  }
  return { busy, causes, peak, whole: (to - from) * chart.devices };
}

function fillRange() {
  const panel = parts.range, real = charts.filter(isReal);
  const focused = [...panel.querySelectorAll("button")].indexOf(document.activeElement);   // which its successor keeps
  panel.hidden = !range || !real.length;
  if (!panel.hidden) {
    const found = real.map(rangeOf), idle = found.map(({ causes }) => sumOf(causes.values()));
    const word = (textContent) => make("span", { className: "word", textContent });   // only where no heading has it
    const cell = (...content) => make("td", {}, ...content);
    const bar = (pieces, whole) => cell(make("span", { className: "bar" }, ...pieces.filter(([, one]) => one > 0).map(([name, one, colour]) => { const piece = swatch(colour); piece.title = `${name} ${percent(one / whole)}`; piece.style.setProperty("--part", one / whole); return piece; })));
    panel.style.setProperty("--longest", Math.max(...idle.map((one, at) => one / found[at].whole)));
    const kinds = Object.fromEntries(real.flatMap((chart) => [...chart.kinds.map((kind) => [kind.title, theme.kinds[kind.name]]), ...chart.lanes.map((part) => [part.title, theme.lanes[part.sort]])]));
    const rows = real.map((chart, at) => {
      const { busy, causes, peak, whole } = found[at], ordered = CAUSES.filter((cause) => causes.get(cause)), sum = sumOf(busy.values()), after = whole - sum - idle[at];
      const words = ordered.map((cause) => [cause, causes.get(cause)]).sort((one, other) => other[1] - one[1]).slice(0, 3).filter(([, part]) => part / whole >= 5e-4).sort(([one], [other]) => CAUSES.indexOf(one) - CAUSES.indexOf(other)).map(([cause, part]) => make("span", { className: "key" }, swatch(theme.causes[cause]), ordered.length > 1 ? `${cause} ${percent(part / whole)}` : cause));
      const fits = fitOf(chart, peak);
      return make("tr", {}, make("th", { textContent: chart.short, scope: "row" }), bar([...busy].map(([title, one]) => [title, one, kinds[title]]), whole), cell(percent(sum / whole), word(" busy")),
        bar(ordered.map((cause) => [cause, causes.get(cause), theme.causes[cause]]), whole), cell(percent(idle[at] / whole), word(" idle")), cell(...words, after / whole >= 5e-4 ? `${percent(after / whole)} after its end` : ""), make("td", { style: fits && "color: var(--limit); font-weight: 700" }, word("peak "), peakOf(chart, peak), word(`${sharedLimit() || ""} ${ofAll(unitOf)}`), fits && ` ${fits}`));
    });
    const head = make("b", {}, word("Range "), rangeText()), act = make("span", {}, button("Zoom to it", "", () => { see(...range); clamp(); }), button("✕", "Let go of the range", () => select(0, 0)));
    panel.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...[head, "busy by kind", "", "idle by cause", "", act, peakHead()].map((one) => make("th", {}, one)))), make("tbody", {}, ...rows)));
  }
  if (focused >= 0) (panel.hidden ? canvas : panel.querySelectorAll("button")[focused]).focus();
  fit();
}
