// The settings at the left: sizes and costs of all schedules, a config's keys, and a card per schedule.
const FIELDS = [   // key, text, unit, minimum and maximum of the slider, step
  ["devices", "p, devices", "", 1, 64, 1], ["microbatches", "m, microbatches", "", 1, 256, 1],
  ["forward", "F, forward", "s", 0, 4, 0.05], ["backward", "B, full backward", "s", 0, 8, 0.05],
  ["input_grad", "I, input gradient", "s", 0, 4, 0.05], ["weight_grad", "W, weight gradient", "s", 0, 4, 0.05],
  ["overlap", "fused F and B", "s", 0, 8, 0.05], ["latency", "transfer latency", "s", 0, 1, 0.01],
];
let fields = 0;   // number of fields so far, for ids

const valueOf = (text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text.trim());

function row(text, unit, meaning, ...inputs) {   // the label names the last input
  const last = inputs.at(-1);
  last.id ||= `field-${fields++}`;
  const label = make("label", { htmlFor: last.id, title: meaning }, text, unit ? make("small", { textContent: ` (${unit})` }) : "");
  return make("div", { className: "field" }, label, ...inputs);
}

function field(holder, [key, text, unit, least, most, step], redraw, usual = "") {
  const whole = SIZES.includes(key), input = make("input", { type: whole ? "number" : "text", name: key, value: holder[key] ?? usual, placeholder: "auto" });
  const slider = make("input", { type: "range", min: least, max: most, step, value: holder[key] ?? (usual || least) });
  if (whole) Object.assign(input, { min: least, step });
  slider.setAttribute("aria-label", `${text}, slider`);
  const set = (value) => { if (value === "") delete holder[key]; else holder[key] = value; redraw(); };
  input.addEventListener("input", () => { slider.value = input.value; set(valueOf(input.value)); });
  slider.addEventListener("input", () => { input.value = slider.value; set(Number(slider.value)); });
  return row(text, unit, "", slider, input);
}

function entry(holder, key, text, usual, meaning, redraw) {   // a value of any type; the usual value is not stored
  const input = make("input", { className: "whole", type: "text", name: key, value: holder[key] ?? usual ?? "", placeholder: "auto", spellcheck: false });
  input.addEventListener("input", () => {
    const value = valueOf(input.value);
    if (value === "" || String(value) === String(usual)) delete holder[key]; else holder[key] = value;
    redraw();
  });
  return row(text, "", meaning, input);
}

function choice(text, values, value, set, meaning = "") {
  const select = make("select", { className: "whole" }, ...values.map(([key, title]) => make("option", { value: key, textContent: title, selected: key === value })));
  select.addEventListener("change", () => set(select.value));
  return row(text, "", meaning, select);
}

function showControls() {
  const { common } = state, redraw = () => change(all()), place = find("common"), config = offer.configs[common.config];
  const skipped = "backward" in common ? ["input_grad", "weight_grad"] : ["backward"];
  place.replaceChildren();
  const configs = Object.keys(offer.configs);
  if (configs.length) place.append(choice("config", [["", "none: costs below"], ...configs.map((name) => [name, name])], common.config || "", takeConfig));
  for (const one of FIELDS) if (!skipped.includes(one[0]) && !(config && COSTS.includes(one[0]))) place.append(field(common, one, redraw));
  if (!config) place.append(choice("backward as", [["IW", "I and W"], ["B", "B"]], "backward" in common ? "B" : "IW", (wanted) => {
    for (const key of ["backward", "input_grad", "weight_grad"]) delete common[key];
    Object.assign(common, wanted === "B" ? { backward: 2 } : { input_grad: 1, weight_grad: 1 });
    showAll();
  }));
  place.append(choice("transport", [...(config ? [["", "the config's"]] : []), ...offer.transports.map((name) => [name, name])], common.transport || "",
    (name) => { if (name) common.transport = name; else delete common.transport; redraw(); }));
  if (config) place.append(...keysOf(config, redraw));
  find("cards").replaceChildren(...state.schedules.map(card));
  find("add").disabled = state.schedules.length >= MOST;
}

function takeConfig(name) {
  const { common } = state;
  delete common.changes;
  if (name) {
    const { devices, microbatches, stages_per_device, options, name: schedule } = offer.configs[name].schedule;
    for (const key of COSTS) delete common[key];
    delete common.transport;
    Object.assign(common, { config: name, devices, microbatches });
    if (schedule) state.schedules[0] = { schedule, ...(stages_per_device ? { stages_per_device } : {}), ...(options ? { options } : {}) };
  } else {
    delete common.config;
    Object.assign(common, START.common);
  }
  showAll();
}

function keysOf(config, redraw) {   // each key of the config with its meaning, by section
  const changes = state.common.changes ||= {}, boxes = new Map();
  for (const { key, value, legal, meaning } of config.keys) {
    const now = changes[key] ?? value, parts = key.split("."), section = parts.length > 1 ? parts.shift() : "more";
    const name = parts.join(".").replaceAll("_", "_\u200b");   // long names wrap at it
    if (!boxes.has(section)) boxes.set(section, make("details", { className: "keys", open: section === "layout" || section === "more" }, make("summary", { textContent: `${section} (of the config)` })));
    boxes.get(section).append(!legal ? entry(changes, key, name, value, meaning, redraw)
      : choice(name, [...(value === null ? [["", "none"]] : []), ...legal.map((one) => [String(one), String(one)])], String(now ?? ""), (wanted) => {
        if (wanted === String(value ?? "")) delete changes[key]; else changes[key] = wanted === "true" ? true : wanted === "false" ? false : wanted;
        redraw();
      }, meaning));
  }
  return [...boxes.values()];
}

function card(one, index) {
  const redraw = () => change([state.schedules.indexOf(one)]), box = make("fieldset", {}, make("legend", { textContent: `Schedule ${index + 1}` }));
  if (one.csv !== undefined) box.append(make("p", { textContent: `${one.name || "dropped file"}: sizes as in the file` }));
  else {
    const family = offer.families.find((known) => known.name === one.schedule);
    box.append(choice("family", offer.families.map((known) => [known.name, known.name]), one.schedule, (name) => {
      state.schedules[index] = { schedule: name };
      const made = card(state.schedules[index], index);
      box.replaceWith(made);
      made.querySelector("select").focus();
      change([index]);
    }));
    if (family) box.append(make("small", { textContent: `${family.title}. Sizes: ${family.constraints}` }));
    if (family && !family.fixed_stages) box.append(field(one, ["stages_per_device", "v, stages a device", "", 1, 8, 1], redraw, family.stages_per_device));
    for (const [option, usual] of Object.entries(family?.options || {})) box.append(entry(one.options ||= {}, option, option.replaceAll("_", " "), usual, "", redraw));
  }
  if (state.schedules.length > 1) {
    const away = make("button", { type: "button", textContent: "Remove", onclick: () => remove(index) });
    away.setAttribute("aria-label", `Remove schedule ${index + 1}`);
    box.append(away);
  }
  return box;
}

function remove(index) {
  runs[index].flight?.controller.abort();
  state.schedules.splice(index, 1);
  runs.splice(index, 1);
  showControls();
  writeLink();
  showRuns();
  watch();
}
