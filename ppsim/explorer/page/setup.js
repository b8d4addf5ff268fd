// The setup at the left: sizes, costs by device, a config's keys, and a card per schedule.
const CELLS = [["forward", "F", "forward"], ["input_grad", "I", "input gradient"], ["weight_grad", "W", "weight gradient"], ["latency", "transfer", "latency of transfers that a device sends"]];
const QUEUES = { async: "nothing queues", directed: "a queue from each sender to each receiver", directions: "two queues a device: activations, gradients", pair: "a queue for each two devices", rank: "one queue a device", blocking: "directed, and the sender waits" };
let fields = 0;   // number of fields so far, for ids

const valueOf = (text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text.trim());
const hasTable = () => !state.common.config || offer.configs[state.common.config]?.costs;   // the costs are numbers, not derived from a model

function row(text, input, meaning = "") {
  input.id ||= `field-${fields++}`;
  const help = meaning ? [make("small", { textContent: meaning.replaceAll("`", ""), id: `${input.id}-help` })] : [];
  if (meaning) input.setAttribute("aria-describedby", `${input.id}-help`);
  return make("div", { className: "field" }, make("label", { htmlFor: input.id, textContent: text }), input, ...help);
}

function field(holder, key, usual = "", step = 0, redraw = () => change()) {   // an input of a key; the usual value is not stored; with a step a drag changes it
  const input = make("input", { type: "text", name: key, value: holder[key] ?? usual ?? "", spellcheck: false, autocomplete: "off" });
  let rests = 0;   // until when more is typed
  input.told = input.value;   // what counts
  const set = () => {
    if (input.value === input.told) return;
    const value = valueOf(input.told = input.value);
    if (value === "" || (usual !== "" && String(value) === String(usual))) delete holder[key]; else holder[key] = value;
    redraw();
  };
  input.addEventListener("input", () => { clearTimeout(rests); rests = setTimeout(set, LONG); });   // not a number that is half typed
  input.addEventListener("change", () => { clearTimeout(rests); set(); });
  if (step) dragged(input, step, set);
  return input;
}

function dragged(input, step, set) {   // a drag along a number changes it, and so do the arrows up and down
  const least = step === 1 ? 1 : 0;
  input.inputMode = step === 1 ? "numeric" : "decimal";
  const move = (value) => { input.value = String(Math.max(least, Math.round(value / step) * step).toPrecision(6) * 1); set(); };
  input.addEventListener("keydown", (event) => {
    const by = { ArrowUp: step, ArrowDown: -step }[event.key];
    if (by && Number.isFinite(Number(input.value))) { event.preventDefault(); move(Number(input.value) + by); }
  });
  input.addEventListener("pointerdown", (event) => {
    const from = Number(input.value), begun = event.clientX;
    if (!Number.isFinite(from) || document.activeElement === input || event.pointerType === "touch") return;
    let last = 0;
    const drag = (now) => { const by = Math.trunc((now.clientX - begun) / 8); if (by !== last) { last = by; move(from + by * step); } };
    window.addEventListener("pointermove", drag);
    window.addEventListener("pointerup", () => window.removeEventListener("pointermove", drag), { once: true });
  });
}

const WORDS = { forward: "Cost F", input_grad: "Cost I", weight_grad: "Cost W", latency: "Transfer" };
const capital = (text) => text.replace(/^./gm, (letter) => letter.toUpperCase());
const labelOf = ({ name, id, ariaLabel }) => capital((WORDS[name] || ariaLabel || document.querySelector(`label[for="${id}"]`)?.textContent || name).replace(/ \((act\.|GB|s)\)/, ""));

function namesDevices(text) {   // as the server reads them; without a count of devices any
  const { devices } = state.common, ends = text.toLowerCase().split(/[,–-]/).map((end) => end.trim());
  return !text || !(devices > 0) || ends.every((end) => ["all", "last"].includes(end) || (/^\d+$/.test(end) && Number(end) < devices));
}

function wrongFields() {   // [input, what it takes] of fields that no schedule can have
  const rule = (input) => {
    const { name } = input, text = input.value.trim();
    if (START.common[name] && SIZES.includes(name) && (text || !state.common.config)) return Number.isInteger(Number(text)) && Number(text) >= 1 ? "" : `a whole number of at least 1, such as ${START.common[name]}`;
    if (name === "by_device") return (text ? namesDevices(text) : ![...input.closest("tr").querySelectorAll("input")].some((one) => one.value.trim())) ? "" : `devices from 0 to ${state.common.devices - 1}, such as 0-1 or last`;
    if (name === "memory_limit") return !text || Number(text) > 0 ? "" : "a number above 0, such as 8, or empty";
    return !COSTS.includes(name) || /^($|[[.\d]|[x×] *\d)/.test(text) ? "" : "seconds of at least 0, such as 1.6 or 12 ms";
  };
  return [...document.querySelectorAll("#setup input")].map((input) => [input, rule(input)]).filter(([, words]) => words);
}

function menu(text, values, value, set, meaning = "") {
  const select = make("select", { label: text }, ...values.map(([key, title]) => make("option", { value: key, textContent: title, selected: key === value })));
  select.addEventListener("pointerenter", () => { select.title = select.selectedOptions[0]?.textContent ?? ""; });   // what is cut
  select.addEventListener("change", () => set(select.value));
  return row(text, select, meaning);
}

const heading = (text, ...buttons) => make("h2", {}, make("span", { textContent: text }), ...buttons);

function showSetup() {
  const { common } = state, config = offer.configs[common.config], names = Object.keys(offer.configs), place = find("setup"), parts = [], [slow = "", ...keys] = config ? keysOf(config) : [];
  if (names.length) parts.push(menu("Config", [["", "none"], ...names.map((name) => [name, name])], common.config || "", takeConfig));
  parts.push(heading("Sizes"), make("div", { className: "pair" }, row("Devices", field(common, "devices", "", 1)), row("Microbatches", field(common, "microbatches", "", 1))));
  if (hasTable()) parts.push(heading("Cost by device (s)"), costTable());
  parts.push(menu("Transport", [...(config ? [["", "the config's"]] : []), ...offer.transports.map((name) => [name, name === common.transport ? name : `${name} – ${QUEUES[name]}`])], common.transport || "",
    (name) => { if (name) common.transport = name; else delete common.transport; change(); showSetup(); }, QUEUES[common.transport] || "how transfers queue"));
  parts.at(-1).querySelector("select").name = "transport";
  parts.push(slow);
  if (hasTable()) parts.push(row("Fused F and B (s)", Object.assign(field(common, "overlap", "", 0.05), { placeholder: "F, then B" }), "seconds of one slot of F and B; empty: one after the other"));
  parts.push(row(`Memory limit (${hasTable() ? "act." : "GB"})`, Object.assign(field(common, "memory_limit", "", 1), { placeholder: hasTable() ? "none" : "the device's" }), hasTable() ? "microbatches whose activations a device may keep, each for its share of the model" : "memory that a device may use; empty: as the config says"));
  parts.push(heading("Schedules", plain("CSV…", () => find("file").click(), { id: "choose" }), adder()), make("div", { id: "cards" }, ...state.schedules.map(card)));
  parts.push(...keys);
  const called = ({ ariaLabel, name }) => ariaLabel || name, focused = called(document.activeElement);   // keeps the focus
  place.replaceChildren(...parts);
  if (focused) [...place.querySelectorAll("input, select, button")].find((one) => called(one) === focused)?.focus();
  showBase();
  showInherited();
  showTitle();
  showFaults();
}

function costTable() {   // the first row is of all devices; further rows name devices and the costs that differ; an empty row is always there
  const { common } = state, rows = (common.by_device ||= []), body = make("tbody");
  const cell = (name, input, place) => { input.setAttribute("aria-label", name); input.dataset.place = place; return make("td", {}, input); };
  const add = () => {
    const line = body.children.length, one = rows[line - 1] || { devices: "" };
    const after = () => {
      if (!rows.includes(one)) { rows.push(one); body.append(add()); }
      change();
    };
    const where = field(one, "devices", "", 0, after);
    where.name = "by_device";
    where.placeholder = "+ device";
    return make("tr", {}, cell(`devices, row ${line}`, where, `${line},0`), ...costs(one, line, `row ${line}`, after));
  };
  const costs = (one, line, words, after) => CELLS.map(([key, , title], at) => cell(`${title} (s), ${words}`, field(one, key, "", key === "latency" ? 0.01 : 0.05, after), `${line},${at + 1}`)), of_all = make("input", { value: "all", readOnly: true, tabIndex: -1 });
  body.append(make("tr", {}, cell("all devices", of_all, "0,0"), ...costs(common, 0, "all devices")));
  for (let line = 0; line <= rows.length; line++) body.append(add());
  const table = make("table", { id: "costs", title: "a pasted block of cells fills the rows" }, make("thead", {}, make("tr", {}, ...["devices", ...CELLS.map(([, text]) => text)].map((textContent, at) => make("th", { textContent, scope: "col", title: CELLS[at - 1]?.[2] || "" })))), body);
  table.addEventListener("keydown", (event) => {
    const [line, at] = (event.target.dataset.place || "").split(",").map(Number);
    if (event.key === "Enter") table.querySelector(`[data-place="${line + 1},${at}"]`)?.focus();
  });
  table.addEventListener("change", () => setTimeout(() => { if (tabled(common)) { showSetup(); change(); } }));   // then the focus has moved
  table.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text"), [line, at] = (event.target.dataset.place || "0,0").split(",").map(Number);
    if (/[\t\n]/.test(text.trim())) { event.preventDefault(); fillCells(text, line, at); }
  });
  return table;
}

const devicesIn = (text, every) => text.toLowerCase().replaceAll("–", "-").replaceAll("last", every.length - 1).split(",").flatMap((part) => { const [first, last = first] = part.replace("all", `0-${every.length - 1}`).split("-").map(Number); return every.slice(first, last + 1); });   // as the server reads "0, 2-3"

const assumed = (key) => (state.common.config ? "" : START.common[key]);   // what an empty cost of all devices means
function showInherited() {   // in each empty cell of a row the cost in force: of the last row with a cost for its devices
  const { devices: count, by_device = [], ...common } = state.common, every = Number.isInteger(count) && count > 0 && count <= 4096 ? [...Array(count).keys()] : [], rows = by_device.map((row) => ({ ...row, named: new Set(devicesIn(String(row.devices ?? ""), every)) }));
  for (const input of document.querySelectorAll("#costs [data-place]")) {
    const [line, at] = input.dataset.place.split(","), key = CELLS[at - 1]?.[0], of_all = String(common[key] ?? assumed(key)).replace(/[[\]]/g, "").split(",");
    if (line === "0" && key) input.placeholder = assumed(key);
    if (line === "0" || !key) continue;
    const values = new Set([...rows[line - 1]?.named ?? []].map((device) => String(rows.findLast((row) => row.named.has(device) && ![undefined, ""].includes(row[key]))?.[key] ?? (of_all[device] ?? of_all[0]).trim())));
    Object.assign(input, { placeholder: values.size > 1 ? "…" : [...values].join(), title: values.size > 1 ? [...values].join(", ") : "" });
  }
}

function fillCells(text, line, at) {   // a block of cells, tabs between columns
  text.trim().split(/\r?\n/).forEach((words, down) => words.split("\t").forEach((word, across) => {
    const key = ["devices", ...CELLS.map(([name]) => name)][at + across], row = line + down;
    if (!key || (row === 0 && key === "devices")) return;
    if (row === 0) state.common[key] = valueOf(word);
    else { while (state.common.by_device.length < row) state.common.by_device.push({ devices: "" }); state.common.by_device[row - 1][key] = key === "devices" ? word.trim() : valueOf(word); }
  }));
  showSetup();
  change();
}

function ownOf(config, { name, csv, stages_per_device, options } = offer.configs[config]?.schedule ?? {}) {   // the schedule that a config names, in a list
  return name ? [{ schedule: name, ...(stages_per_device ? { stages_per_device } : {}), ...(options ? { options } : {}) }] : csv && [{ name: csv }];
}

function takeConfig(name) {
  const { common } = state;
  for (const key of ["changes", "by_device", "memory_limit", "transport", "config", "backward", ...COSTS]) delete common[key];
  Object.assign(common, name && { config: name }, usualOf(name));
  tabled(common);
  if (name) state.schedules = [...ownOf(name), ...state.schedules.slice(1)];
  showAll();
}

function keysOf(config) {   // the keys of the config by section, each with its unit, its known values and its meaning
  const changes = state.common.changes ||= {}, boxes = new Map(), skipped = config.costs ? [SLOW, ...COSTS.map((key) => `costs.${key}`)] : [];
  const reset = plain("Reset what was changed", () => { state.common.changes = {}; showAll(); });
  const words = (one) => ({ true: "yes", false: "no" }[one] ?? String(one));
  for (const { key, value, name, unit, legal, known, meaning, set: is_set, default: usual } of config.keys.filter((one) => !skipped.includes(one.key))) {
    const section = key.includes(".") ? key.split(".")[0] : "step", text = `${capital(name)}${unit ? ` (${unit})` : ""}`, now = changes[key] ?? value;
    if (!boxes.has(section)) boxes.set(section, key === SLOW ? make("div") : folded(section, section === "layout"));
    const mark = () => { box.classList.toggle("changed", key in changes); reset.hidden = !Object.keys(changes).length; }, set = () => { mark(); change(); };
    const typed = () => { const input = field(changes, key, value ?? "", 0, set); input.title = input.value; input.placeholder = key === SLOW ? "as 3: 1.5" : usual; return input; };
    const values = legal ?? (known.length ? [...new Set([...(now === null ? [] : [now]), ...known])] : null);
    const box = values ? menu(text, [...(value === null ? [["", usual || "none"]] : []), ...values.map((one) => [String(one), words(one)]), ...(legal ? [] : [[OTHER, OTHER]])], String(now ?? ""), (wanted) => {
      const select = box.querySelector("select");
      if (wanted === OTHER) { const input = typed(); input.id = select.id; select.replaceWith(input); input.select(); return; }
      if (wanted === String(value ?? "")) delete changes[key]; else changes[key] = { true: true, false: false }[wanted] ?? wanted;
      set();
    }, meaning) : row(text, typed(), meaning);
    box.querySelector("input, select").name = key;
    box.querySelector("label").dataset.was = words(value ?? (usual || "none"));
    mark();
    const [group] = section !== "layout" || is_set ? [] : GROUPS.find(([, words]) => words.test(key)), place = group ? `${section}: ${group}` : section;   // what the file sets comes first
    if (!boxes.has(place)) boxes.set(place, folded(group));
    boxes.get(place).append(box);
  }
  for (const [place, box] of boxes) if (place.includes(": ")) { boxes.get("layout").append(box); boxes.delete(place); }
  const { jitter = "", ...others } = Object.fromEntries(boxes), list = make("div", { id: "keys" }), filter = make("input", { type: "search", placeholder: "such as expert", spellcheck: false }), none = make("div", { className: "quiet", role: "status" });
  filter.addEventListener("input", () => {
    const text = filter.value.trim().toLowerCase(), holds = (one) => `${one.querySelector("label").textContent} ${one.querySelector("[name]").name}`.toLowerCase().includes(text);
    for (const one of list.querySelectorAll("details .field")) one.hidden = !holds(one);
    for (const one of list.querySelectorAll("details")) { one.hidden = !one.querySelector(".field:not([hidden])"); one.open = text ? true : one.matches(":first-of-type") && one.parentElement === list; }
    none.textContent = list.querySelector(".field:not([hidden]) [name]") ? "" : `no setting has ${text}`;
  });
  list.append(row("Find a setting", filter), none, ...Object.values(others));
  return [jitter, reset, ...(list.children.length > 2 ? [list] : [])];
}
const folded = (name, open = false) => make("details", { open }, make("summary", { textContent: capital(name) }));
const GROUPS = [["overlap", /overlap|scatter/], ["experts", /expert|groups_per/], ["recompute", /recompute/], ["precision", /fp8|bf16|bytes|gradient/], ["fusion", /fused|cuda|loss/], ["parallelism", /./]];   // of layout keys that the file does not set
const OTHER = "other …", SLOW = "jitter.slow_devices";   // which the table of costs has too

const isKnown = (index) => { const { schedule, csv } = state.schedules[index]; return csv !== undefined || !schedule || offer.families.some(({ name }) => name === schedule); };

function families(index, empty, label) {   // the list to choose a schedule from; `empty`: what it shows while none is chosen
  const select = make("select", { label }, ...(empty ? [make("option", { value: "", textContent: empty, selected: true, disabled: true })] : []),
    ...[...new Set(offer.families.map(({ group }) => group))].map((group) => Object.assign(make("optgroup", {}, ...offer.families.filter((one) => one.group === group)
      .map(({ name, title, runs }) => { const selected = name === state.schedules[index]?.schedule; return make("option", { value: name, textContent: selected ? name : `${name} – ${title}${runs && ` (${runs})`}`, selected }); })), { label: group })));
  return select;
}

function replacing(select, index) {   // a choice in the list of families takes the place of a schedule
  select.addEventListener("change", () => { state.schedules[index] = { schedule: select.value }; showSetup(); change([index]); });
  return select;
}

function card(one, index) {
  const again = () => change([state.schedules.indexOf(one)]), box = make("div", { className: "card" }, make("span", { className: "quiet", textContent: index + 1 }));
  const last = state.schedules.length === 1, is_file = one.schedule === undefined;
  if (is_file) box.append(make("b", { textContent: one.name || "dropped file" }));
  else box.append(replacing(families(index, isKnown(index) ? "" : `${one.schedule} (unknown)`, `Schedule ${index + 1}`), index));
  box.append(make("span", {}, ...(last ? [] : [plain("Base", () => viewer.setBase(index), { name: "base", label: `Base: schedule ${index + 1}` })]),
    plain("✕", () => remove(index), { disabled: last, label: `Remove schedule ${index + 1}` })));
  const family = offer.families.find((known) => known.name === one.schedule);
  if (family) box.querySelector("select").title = family.title;
  if (is_file) box.append(make("small", { className: "quiet", textContent: "its sizes are fixed" }));
  if (family && (!family.fixed_stages || Object.keys(family.options).length)) {
    const options = make("details", {}, make("summary", { textContent: "options" }));
    if (!family.fixed_stages) options.append(row("Stages per device", field(one, "stages_per_device", family.stages_per_device, 1, again)));
    for (const [option, usual] of Object.entries(family.options)) {
      const text = capital(option.replaceAll("_", " ")), chosen = one.options ||= {}, set = (word) => { chosen[option] = word; again(); };
      options.append(family.words[option] ? menu(text, family.words[option].map((word) => [word, word]), chosen[option] ?? usual, set) : row(text, Object.assign(field(chosen, option, usual ?? "", 0, again), { placeholder: "automatic" })));
    }
    options.open = !!(one.stages_per_device || Object.keys(one.options || {}).length);
    box.append(options);
  }
  return box;
}

const showBase = () => document.querySelectorAll("#cards [name=base]").forEach((one, index) => { const is_base = index === baseOf(); one.setAttribute("aria-disabled", is_base); one.textContent = is_base ? "base" : "Base"; });   // which card is the base; it keeps the focus

function adder() {   // the list of families, of which one is added; then its card has the focus: letters are keys of the chart
  const full = state.schedules.length >= MOST, select = families(-1, full ? `${MOST} at most` : "Add…", "Add a schedule");
  Object.assign(select, { id: "add", disabled: full });
  select.addEventListener("change", () => { addFound({ schedule: select.value }); find("cards").lastChild.querySelector("button").focus(); });
  return select;
}

function remove(index) {
  runs[index].flight?.controller.abort();
  const base = baseOf();
  state.schedules.splice(index, 1);
  runs.splice(index, 1);
  viewer.setBase(base > index ? base - 1 : Math.min(base, runs.length - 1));
  takeResults();
  showSetup();
  (find("cards").children[Math.min(index, runs.length - 1)].querySelector("button:enabled") ?? find("add")).focus();
  writeLink();
  showRuns();
  watch();
}
