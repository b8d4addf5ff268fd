// What the answers show: the charts, notes on faults and work over them, the title, the numbers of one schedule, and texts to copy.
let shown = false, tab = "Chart", roomy = false;   // whether charts have been drawn since the address was read; whether the meanings of causes have space

const PATIENCE = 2000;   // milliseconds until the first pictures are drawn without the others, which would change the scale

function chartFor(index) {   // the last good picture, or a part with a name and no actions
  const run = runs[index], busy = runs.filter((one) => one.flight), early = !shown && busy.length > 0 && (!!state.view || Math.max(...busy.map(waited)) < PATIENCE);
  if (run.good && !early) return run.good.chart;
  const devices = run.good?.chart.devices || Math.min(Math.max(Math.round(Number(state.common.devices)) || 1, 1), 512), none = [], offsets = new Uint32Array(devices + 1);
  return run.blank?.devices === devices ? run.blank : run.blank = {
    title: nameOf(index), devices, makespan: 0, step: 0, idle: 0, tick: 1, box: 0, longest: 0, locals: 1, slices: 1, kinds: none, lanes: none, band: [0, 1], ledger: {}, causes: {},
    memory: { unit: "activations", most: 0, peaks: none, capacity: null }, unpacked: { start: none, length: none, kind: none, local: none, microbatch: [0], cause: none, listed: none, begins: none, offsets, "transfer target": none, "transfer length": none, "memory offsets": offsets, "memory time": none, "memory level": none },
  };
}

async function showRuns() {   // draws the last good result of each schedule
  if (all().some(isLive) && !runs.some((run) => run.flight)) pictured.add(linkText(""));
  const wanted = all().map(chartFor);
  shown ||= wanted.some((chart) => chart.step);
  showFaults();
  showTable();
  await viewer.show(wanted, marks());
  showTitle();
  showBase();
  showNotes();
}

function marks() {
  return all().map((index) => {
    const run = runs[index], faulty = isOut(run), waiting = isWaiting(run) || !!run.result?.stopped, noted = isNoted(index) ? run.noted : 0;
    if (!chartFor(index).step) return { short: nameOf(index), waiting: true, faulty: isFaulty(run), noted };
    const titled = state.schedules[index].csv === undefined ? {} : { title: `${nameOf(index)}${run.good.chart.title.slice(run.good.chart.title.indexOf(","))}` };   // with the name of the dropped file
    return { ...titled, sizes: sizesOf(index), bound: run.good.lower_bound.seconds, short: nameOf(index), faulty, waiting, noted, dimmed: faulty ? 0.28 : waiting || gone ? 0.6 : 0 };
  });
}

const isFaulty = (run) => isOut(run) && !isWaiting(run);   // not of what was set before
const faultsOf = (index) => (isFaulty(runs[index]) ? runs[index].result.faults : []);
const isNoted = (index) => isFaulty(runs[index]) && (!commonFault() || index === 0);   // has a note between its numbers and its picture
const textOf = (index) => faultsOf(index).map(({ text }) => text).join("\n");
function commonFault() {   // the fault that every schedule has: one of the fields that all share
  const texts = all().map(textOf);
  return texts[0] && texts.every((text) => text === texts[0]) ? texts[0] : "";
}

function wordsOf(index) {   // a schedule's faults, a sentence each
  const wrong = wrongFields();
  return !isKnown(index) ? "this ppsim knows no schedule of this name"
    : wrong.length ? wrong.map(([input, rule]) => `${labelOf(input)}${input.value ? ` '${input.value}'` : ""}: must be ${rule}`).join("\n") : textOf(index);
}

function fieldOf(index) {   // the key of the field that a fault is about: one that was changed, if there is one
  const keys = faultsOf(index).flatMap((fault) => fault.keys), changed = Object.keys(state.common.changes || {});
  if (!keys.length && changed.length === 1) return changed[0];
  return keys.find((key) => key in (state.common.changes || {})) ?? keys.find((key) => document.querySelector(`#setup [name="${key}"]`)) ?? keys[0];
}

function showFaults() {   // outlines what is wrong: fields, and the card of a schedule that has a fault alone
  const shared = commonFault(), fields = wrongFields(), typed = fields.map(([input]) => input), wrong = [...typed], told = new Map(fields.map(([input, rule]) => [input, `${labelOf(input)}: ${rule}`])), inputs = [...document.querySelectorAll("#setup input, #setup select")];
  for (const index of all()) {
    const text = textOf(index), key = fieldOf(index);
    find("cards")?.children[index]?.classList.toggle("bad", !!text && !shared);
    if (!text || typed.length) continue;
    const named = inputs.filter(({ name }) => name === key), quoted = named.filter(({ value }) => value && (value.length > 3 ? text : text.split(";")[0].split(/[\s:,='"]+/)).includes(value));
    const costs = key === "by_device" ? inputs.filter(({ name, value, dataset }) => dataset.place > "1" && value && name !== key) : [];
    const found = quoted.length ? quoted : costs.length ? costs : named.slice(0, 1);
    wrong.push(...found);
    if (found.length) told.set(found[0], shared ? capital(text) : sharedSizes(key).text || `${nameOf(index)}: ${text.split("; ").at(-1)}`);   // what to do; why is said in the chart
  }
  for (const one of document.querySelectorAll("#setup .told")) one.remove();
  for (const [input, textContent] of [...told].reverse()) { const place = input.closest(".pair") || input.closest("#costs, .field"); place[place.matches(".field") ? "append" : "after"](make("small", { className: `told${input.name === "microbatches" ? " right" : ""}`, textContent })); }
  for (const input of inputs) if (wrong.includes(input)) { input.setAttribute("aria-invalid", "true"); input.closest("details")?.setAttribute("open", ""); } else input.removeAttribute("aria-invalid");
}

function put(index, key, value) {   // sets a field of all schedules, of the config, or of one schedule
  const { common } = state, one = state.schedules[index];
  if (key in START.common || ["by_device", "memory_limit", "overlap"].includes(key)) common[key] = value;
  else if (key.includes(".") || key === "batch") (common.changes ||= {})[key] = value;
  else if (key === "stages_per_device") one[key] = value;
  else (one.options ||= {})[key] = value;
  showAll();
}

function sharedSizes(key) {   // the nearest sizes that every schedule with a fault of this size takes, and a sentence
  const now = Number(state.common[key] ?? usualOf(state.common.config)[key]), found = all().flatMap(faultsOf).filter(({ use: [one] }) => one?.key === key);
  if (!SIZES.slice(0, 2).includes(key) || !now) return {};
  const saying = (words, holds = true) => found.filter(({ text }) => text.includes(words) === holds), least = Math.max(1, ...saying("use at least").map(({ use: [{ value }] }) => value)), most = Math.min(...saying("use at most").map(({ use: [{ value }] }) => value));
  const steps = saying("use at ", false).map(({ use: [{ value }, other] }) => (other ? other.value - value : value));   // of multiples, of which it names the nearest
  let step = 1;
  while (steps.some((by) => step % by)) step++;
  const values = [Math.floor(Math.min(now, most) / step), Math.ceil(Math.max(now, least) / step)].map((times) => times * step).filter((value, at, [first]) => value >= least && value <= most && (!at || value !== first));
  return { values, text: found.length > 1 && `Use ${step > 1 ? values.join(" or ") : least > 1 ? `at least ${least}` : `at most ${most.toLocaleString("en")}`} ${key}` };
}

function missingConfig() {   // what to do about a link to a config that this server does not have
  const { common } = state, words = `ppsim explore ${common.config}.yaml`;
  return !common.config || offer.configs[common.config] ? [] : [button(`Copy "${words}"`, () => navigator.clipboard?.writeText(words).catch(() => {})), button("Go on without it", () => takeConfig(""))];
}

function noteOf(index) {   // what is wrong, a button that sets it right, and what the dimmed picture is of
  const run = runs[index], shared = commonFault(), wrong = fieldOf(index), text = wordsOf(index), usual = run.good ? undefined : START.common[wrong];
  const use = wrongFields().length ? [] : faultsOf(index).flatMap((fault) => fault.use), offered = !isKnown(index) ? [] : !use.length && usual !== undefined ? [{ key: wrong, value: usual, text: `Use ${usual}` }] : use;
  const [{ key: size } = {}] = offered, { values } = sharedSizes(size), right = use.length && values ? values.map((value) => button(`Use ${counted(value, size)}${shared ? "" : " for all"}`, () => put(index, size, value))) : offered.map(({ key, value, text: words }) => button(words, () => put(index, key, value)));
  if (run.result.again) right.push(button("Try again", () => change([index])));
  else if (!isKnown(index)) right.push(replacing(families(index, "choose one", "Known schedules"), index));
  const drop = !shared && !run.result.again && state.schedules.length > 1 ? button("Remove", () => remove(index)) : "";
  const undo = run.good && isKnown(index) && !run.result.again ? button("Undo", () => { const { common, schedule } = run.before || run.good; state.common = structuredClone(common); if (!shared) state.schedules[index] = structuredClone(schedule); showAll(); }) : "";
  const pictures = new Set(all().filter((one) => runs[one].good).map((one) => differing(runs[one].good, one)));
  return make("div", { className: "note" }, make("span", { className: "fault", textContent: capital(use.length ? text.replace(/; use [^;]*$/, "") : text) }),
    run.good ? make("div", { textContent: `Last picture${shared && pictures.size > 1 ? "s" : differing(run.good, index)}.` }) : "", make("span", {}, ...missingConfig(), ...right, undo, drop));
}

const counted = (number, things) => `${number.toLocaleString("en")} ${number === 1 ? things.slice(0, -1) : things}`;

function differing(good, index) {   // the sizes of a picture that differ from those of the page
  const { common } = state, words = SIZES.slice(0, 2).filter((key) => good.common[key] && good.common[key] !== common[key]).map((key) => counted(good.common[key], key));
  return words.length ? `, of ${words.join(" and ")}` : good.schedule.schedule !== state.schedules[index].schedule ? `, of ${good.schedule.schedule}` : ", from before the change";
}

function showNotes() {   // below the legend: a server that is gone, and what is about no schedule
  const place = find("notes"), parts = [];
  if (gone) parts.push(make("div", { className: "note" }, make("b", {}, "The server does not answer; is ", make("code", { textContent: "ppsim explore" }), " still running?"), `Pictures and numbers are of its last answer${runs[0].good && runs[0].good.key !== keyOf(state.common) ? differing(runs[0].good, 0) : ""}.`, make("span", {}, button("Try again", () => change()))));
  const stopped = all().filter((index) => runs[index]?.result?.stopped && !runs[index].flight), drawn = stopped.filter((index) => runs[index].good);
  if (stopped.length) parts.push(make("div", { className: "note news" }, stopped.length < runs.length ? `Stopped: ${stopped.map(nameOf).join(", ")}.` : `Stopped.${drawn.length ? ` The picture${differing(runs[drawn[0]].good, drawn[0]).replace(",", " is")}.` : ""}`,
    make("span", {}, button("Simulate", () => change(stopped)), drawn.length ? button("Undo", () => { state.common = structuredClone(runs[drawn[0]].good.common); for (const index of drawn) state.schedules[index] = structuredClone(runs[index].good.schedule); showAll(); }) : "")));
  if (notice) parts.push(make("div", { className: undoes ? "note news" : "note" }, make("span", { className: "fault", textContent: notice }), make("span", {}, undoes ? button("Undo", () => find("undo").click()) : "", plain("✕", () => { notice = ""; showNotes(); }, { label: "Dismiss" }))));
  place.classList.toggle("gone", gone);   // over all charts
  if (place.textContent !== parts.map((one) => one.textContent).join("")) place.replaceChildren(...parts);
}

const workOf = (index) => { const seconds = Math.floor(waited(runs[index]) / 1000); return !runs[index].flight ? "done, drawn with the others" : `simulating …${seconds ? ` ${seconds} s` : ""} `; };

const status = () => { const { text, act } = comparison(); return text ? [`${text} `, plain(...act)] : []; };
let placed = "", viewerPlaces = [];   // what is drawn over the charts, as text; the pixels of each schedule
function showLines(places, right, base, axis) {   // upon the charts: what is better, work in progress, and notes on faults
  viewerPlaces = places;
  const lines = find("lines");
  const rows = places.map((place, index) => ({ index, top: Math.round(place.title), left: Math.round(right + 26), note: Math.round(place.note) })).filter(({ index }) => runs[index]);
  const is_narrow = rows.length > 0 && lines.offsetWidth - rows[0].left < 240;   // no advice fits beside the numbers: it is below the chart
  const now = JSON.stringify([rows, base, axis, lines.offsetWidth, runs.map((run) => !!run.flight), rows.map(({ index }) => [isWaiting(runs[index]) && workOf(index), faultsOf(index), Object.values(betterOf(index)).flat().map(String)]), comparison().text]);
  if (now === placed || lines.matches(":active")) return;   // a button that is being pressed stays
  placed = now;
  document.body.classList.toggle("narrow", is_narrow);
  lines.style.clipPath = `inset(0 0 ${-axis}px)`;
  const at = (element, top, left) => { element.style.top = `${top}px`; element.style.left = `${left}px`; return element; };
  const focused = [...lines.querySelectorAll("button")].indexOf(document.activeElement);   // which its successor keeps
  const advice = all().map(betterOf), told = new Set();
  lines.replaceChildren(...rows.length && !is_narrow ? [at(make("div", { className: "caption" }, make("span", {}, "better? ", ...status().slice(0, 1)), ...status().slice(1)), 0, rows[0].left)] : [], ...rows.flatMap(({ index, top, left, note }) => {
    const faulty = isFaulty(runs[index]), work = isWaiting(runs[index]), { text, acts = [] } = is_narrow ? {} : advice[index];
    const line = at(make("div", { className: `better${work ? " waiting" : ""}` }, ...(work ? [workOf(index)] : faulty || !text ? [] : [text]).map((textContent) => make("span", { textContent, title: textContent.startsWith("at its bound") ? "the step is at its lower bound: no order of this schedule's actions is shorter" : "" })), work && index === all().find((one) => isWaiting(runs[one])) ? plain("Cancel", cancel, { title: "stop all schedules" }) : "", ...(work || faulty ? [] : acts.map((act) => plain(...act)))), top, left);
    return isNoted(index) ? [line, at(noteOf(index), note, 54)] : [line];
  }));
  const notes = lines.querySelectorAll(".note");   // the rows make room for them
  all().filter(isNoted).forEach((index, at) => { const high = notes[at]?.offsetHeight + 6; if (high && runs[index].noted !== high) { runs[index].noted = high; showTable(); viewer.mark(marks()); } });
  for (const one of lines.querySelectorAll(".better span"))   // no word is cut: what is known of the other goes first
    for (const part of [/^[^·]* · /, /, (same|peak)[^,]*$/, /^imbalance [^,]*, /, /, (no framework|the fastest).*$/]) if (one.scrollWidth > one.clientWidth) { one.title ||= one.textContent; one.textContent = one.textContent.replace(part, ""); }
  lines.querySelectorAll("button")[focused]?.focus();
  find("better").replaceChildren(make("p", { className: "quiet" }, ...status()), ...rows.map(({ index }) => { const { text = "—", acts = [] } = advice[index], why = /, (no framework|the fastest)[^,]*/.exec(text)?.[0], known = told.has(why); told.add(why); return make("p", {}, make("span", {}, make("b", { textContent: `${nameOf(index)}: ` }), (known ? text.replace(why, "") : text).replaceAll(" %", "\u00a0%")), make("span", {}, ...acts.map((act) => plain(...act)))); }));
}

function showTitle() {   // of the picture, not of what is being typed
  const { good } = runs[all().find(isLive) ?? all().find((index) => runs[index]?.good)] || {}, { common } = good || state, size = (key) => (key === "devices" && good?.chart.towers ? good.chart.devices : common[key] > 0 ? common[key] : offer.configs[common.config]?.schedule[key] ?? "?"), one = (key, text) => `${text} ${String(common[key] ?? (common.config ? "auto" : START.common[key])).replace(/^-/, "−")}`, equal = new Set(CELLS.slice(0, 3).map(([key]) => String(common[key]))).size === 1;
  const own = (common.by_device || []).map((row) => [row.devices, CELLS.filter(([key]) => ![undefined, ""].includes(row[key])).map(([key, text]) => `${text} ${row[key]}`).join(", ")]).filter(([, words]) => words).map(([devices, words]) => `dev. ${String(devices).replace("last", size("devices") - 1)}: ${words.replace(/x(?= *\d)/g, "×")}`).join("; "), [model] = common.config && good?.chart.title.includes(": ") ? good.chart.title.split(": ") : [], costs = equal ? one("forward", "F, I, W") : CELLS.slice(0, 3).map(([key, text]) => one(key, text)).join(" · ");
  const sized = state.schedules.every((schedule) => schedule.schedule === undefined) ? [nameOf(0)] : [...(model ? [`${model}: `] : []), `${counted(size("devices"), "devices")}, `, counted(size("microbatches"), "microbatches")];
  find("title").replaceChildren(...sized.map((textContent) => make("span", { textContent })));
  find("about").title = find("about").textContent = !good ? "" : [hasTable() ? `${costs} s` : good.costs, ...(hasTable() ? [`transfer ${common.latency ?? 0} s`] : []), ...(own ? [own] : []), common.transport || ""].filter(Boolean).join(" · ");
  document.title = `${sized.join("")} · ppsim explorer`;
}

function showTable() {   // one schedule of few devices: the table of devices and the lower bounds in what is left
  const { pane, table, totals } = viewerParts, drawn = all().filter((index) => runs[index]?.good || !isFaulty(runs[index])), only = shown && drawn.length === 1 ? runs[drawn[0]].good : null, notes = all().reduce((sum, index) => sum + (drawn.includes(index) ? 0 : 32 + (runs[index].noted || 0)), 0);   // of schedules without a picture
  const rows = only && only.chart.devices, is_wide = innerWidth > 760, tall = only && viewer.heightOf(rows) + notes, left = innerHeight - 148 - is_wide * Math.min(Math.max(22, 0.06 * innerHeight - 31), 37) * (rows + 1), high = Math.min(tall, left), fits = !!only && is_wide && high >= 90 + 40 * rows + 80 + notes;
  if (roomy !== (roomy = !!only && left - tall > 145)) totals.open = roomy;   // else the reader's choice stays
  table.hidden = !fits;
  pane.style.flex = fits ? `0 1 ${high}px` : "";
  if (!fits) return;
  table.open = true;
  table.style.opacity = isLive(drawn[0]) ? "" : 0.28;
}

function sheet(name) {   // on phones: one of the sheets, or the chart alone
  tab = tab === name ? "Chart" : name;
  document.body.dataset.sheet = tab;
  for (const one of find("tabs").children) one.setAttribute("aria-pressed", String(one.textContent === tab));
}

function fold(folded = !document.body.classList.contains("folded")) {
  document.body.classList.toggle("folded", folded);
  find("fold").setAttribute("aria-expanded", String(!folded));
}

const FILES = { html: "interactive page", csv: "schedule", svg: "vector picture", png: "picture" };
let chosenRun = "all";   // the schedule to copy
function showCopies() {
  open(false);
  const drawn = all().filter((index) => runs[index].good), dialog = find("copies");
  if (chosenRun !== "all" && !drawn.includes(chosenRun)) chosenRun = "all";
  const select = make("select", { label: "Schedules", onchange: () => { chosenRun = select.value === "all" ? "all" : Number(select.value); showCopies(); } },
    ...[["all", "all schedules"], ...drawn.map((index) => [index, `${index + 1}: ${nameOf(index)}`])].map(([value, textContent]) => make("option", { value, textContent, selected: value === chosenRun })));
  const one = chosenRun === "all" && drawn.length === 1 ? drawn[0] : chosenRun, chosen = one === "all" ? drawn : [one];
  const texts = one === "all" ? [] : Object.entries({ command: "command line", config: "config (YAML)", python: "Python" }).map(([key, text]) => button(text, ({ currentTarget }) => copy(runs[one].good.copies[key], currentTarget)));
  const endings = one === "all" ? ["html", "svg", "png"] : ["html", "csv", "svg", "png"];
  const line = (title, ...content) => make("div", {}, make("span", { className: "quiet", textContent: title }), ...content);
  dialog.replaceChildren(make("header", {}, make("b", { textContent: "Copy or save" }), make("span", { className: "grow" }), button("Close", () => dialog.close())),
    line("Schedules", select), line("Copy to the clipboard", button("link to this page", ({ currentTarget }) => copy(location.href, currentTarget)), button("table of measures", ({ currentTarget }) => copy(measuresOf(chosen), currentTarget)), ...texts),
    make("p", { className: "quiet", textContent: "The link opens wherever ppsim explore runs; what follows # holds everything. For readers without ppsim, save the interactive page." }),
    line("Save as a file", ...endings.map((ending) => button(`${FILES[ending]} (.${ending})`, () => save(chosen, ending)))), make("pre", { id: "copied", hidden: true, tabIndex: 0 }));
  if (!dialog.open) dialog.showModal();
}

function measuresOf(chosen) {   // a table with tabs: measure, values, definition
  const results = chosen.map((index) => runs[index].good), rows = new Map(results.flatMap(({ measures }) => measures.map((one) => [one.name, one])));
  const text = ({ measures }, name) => measures.find((one) => one.name === name)?.text ?? "–";
  return [["measure", ...chosen.map(nameOf), "definition"], ...[...rows.values()].filter((one) => results.some((result) => !["–", "unknown"].includes(text(result, one.name)))).map((one) => [one.title, ...results.map((result) => text(result, one.name)), one.meaning])].map((cells) => cells.join("\t")).join("\n")
    + results.map(({ memory }, at) => (memory ? `\n\n${nameOf(chosen[at])}: ${memory}` : "")).join("");
}

function copy(text, pressed) {
  const place = find("copied"), lines = text.split("\n").map((line) => line.split("\t"));
  place.replaceChildren(...(lines[0].length > 1 ? [make("table", {}, ...lines.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", { textContent: cell, colSpan: cells.length === 1 ? lines[0].length : 1 })))))] : [text]));
  place.hidden = false;
  for (const one of find("copies").querySelectorAll("button")) one.textContent = one.textContent.replace(" ✓", "") + (one === pressed ? " ✓" : "");   // what the clipboard has
  navigator.clipboard?.writeText(text).catch(() => {});
}

async function save(indexes, ending) {
  const cases = indexes.map(caseOf), response = await ask(`/api/file/${ending}`, cases.length > 1 ? { cases } : cases[0]);
  if (!response.ok) { notice = sentences(await response.json()); find("copies").close(); return showNotes(); }
  const link = make("a", { href: URL.createObjectURL(await response.blob()), download: `${indexes.map(nameOf).join("-")}.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
