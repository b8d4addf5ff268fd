// The server's results: charts, tables of measures, bounds, memory and idle time, and texts to copy.
let chosenRun = "all", shown = false;   // the schedule to copy; true if charts have been drawn since the address was read

async function showRuns() {
  const faults = all().flatMap((index) => (runs[index].result?.faults || []).map((fault) => (fault.startsWith(`${nameOf(index)}:`) ? fault : `${nameOf(index)}: ${fault}`)));
  find("general").textContent = [...(notice ? [notice] : []), ...faults].join("\n");
  const drawn = drawnRuns();
  for (const index of drawn) if (state.schedules[index].csv !== undefined) {   // titled with the name of the dropped file
    const { chart } = runs[index].result;
    chart.title = `${nameOf(index)}${chart.title.slice(chart.title.indexOf(","))}`;
    chart.short = nameOf(index);
  }
  if (state.view && !shown && runs.some((run) => run.flight)) return;   // the view in the address is a view of all charts
  shown ||= drawn.length > 0;
  if (drawn.length) await viewer.show(drawn.map((index) => runs[index].result.chart));
  showTables(drawnRuns());   // a run may have failed while the charts were drawn
}

const drawnRuns = () => all().filter((index) => runs[index].result?.chart);

function table(heads, rows) {
  const head = make("tr", {}, ...heads.map((text) => make("th", { textContent: text, scope: "col" })));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells))));
}
const cell = (text, className = "") => make("td", { textContent: text, className });

function difference(measure, first) {   // from the first schedule, in percent
  if (typeof measure?.number !== "number" || typeof first?.number !== "number" || first.number === 0) return "";
  const part = (measure.number / first.number - 1) * 100, same = Math.abs(part) < 0.05;
  const judged = same || measure.worse === null ? "quiet" : (part > 0) === measure.worse ? "worse" : "better";
  return make("div", { textContent: same ? "±0 %" : `${part > 0 ? "+" : "−"}${Math.abs(part).toFixed(1)} %`, className: judged });
}

function showTables(drawn) {
  const results = drawn.map((index) => runs[index].result), names = drawn.map(nameOf);
  const rows = new Map(results.flatMap((result) => result.measures.map((one) => [one.name, one])));
  const named = (result, name) => result.measures.find((one) => one.name === name);
  find("measures").replaceChildren(table(["measure", ...names, "definition"], [...rows.values()].map((one) => [
    cell(one.title),
    ...results.map((result, place) => {
      const shown = cell(named(result, one.name)?.text ?? "–", "number");
      if (place) shown.append(difference(named(result, one.name), named(results[0], one.name)));
      return shown;
    }),
    cell(one.meaning, "meaning"),
  ])));
  const share = ({ chart }, cause) => 100 * (chart.ledger[cause] || []).reduce((sum, seconds) => sum + seconds, 0) / (chart.makespan * chart.devices || 1);
  const causes = new Map(results.flatMap(({ chart }) => Object.entries(chart.causes)));
  find("ledger").replaceChildren(table(["cause (% of devices × makespan)", ...names, "definition"], [...causes].map(([cause, meaning]) => [
    cell(cause), ...results.map((result) => cell(`${share(result, cause).toFixed(1)} %`, "number")), cell(meaning, "meaning")])));
  find("bound").replaceChildren(...results.map((result, place) => {
    const { which, gap, seconds, device } = result.lower_bound, where = device === null ? "" : ` on device ${device}`;
    return make("p", { textContent: `${names[place]}: no order of the same actions takes less than ${Number(seconds.toPrecision(5))} s (${which}${where}); this one takes ${(100 * gap).toFixed(1)} % more.` });
  }));
  find("memory").replaceChildren(...results.map((result, place) => memoryOf(result, names[place])));
  showCopies(drawn);
}

function memoryOf({ memory }, name) {
  const words = memory.unknown ? memory.unknown : memory.fits === null ? "no capacity is known" : memory.fits ? "fits its devices" : "does not fit its devices";
  const heading = make("p", { textContent: `${name}: ${words}`, className: memory.fits === false ? "worse" : "" });
  if (!memory.text) return heading;
  return make("div", {}, heading, make("details", {}, make("summary", { textContent: "what each device holds at its peak" }), make("pre", { textContent: memory.text, tabIndex: 0 })));
}

function showCopies(drawn) {
  if (chosenRun !== "all" && !drawn.includes(chosenRun)) chosenRun = "all";
  const select = make("select", { onchange: () => { chosenRun = select.value === "all" ? "all" : Number(select.value); showCopies(drawn); } },
    make("option", { value: "all", textContent: "all schedules", selected: chosenRun === "all" }),
    ...drawn.map((index) => make("option", { value: index, textContent: `${index + 1}: ${nameOf(index)}`, selected: index === chosenRun })));
  select.setAttribute("aria-label", "which schedule");
  const one = chosenRun === "all" && drawn.length === 1 ? drawn[0] : chosenRun;
  const texts = one === "all" ? [] : Object.entries({ command: "command line", config: "config (YAML)", python: "Python" }).map(([key, text]) =>
    make("button", { type: "button", textContent: text, onclick: () => copy(text, runs[one].result.copies[key]) }));
  const endings = one === "all" ? ["html", "svg", "png"] : ["html", "csv", "svg", "png"];
  const saved = endings.map((ending) => make("button", { type: "button", textContent: `.${ending} file`, onclick: () => save(one === "all" ? drawn : [one], ending) }));
  const link = make("button", { type: "button", textContent: "link to this page", onclick: () => copy("link", location.href) });
  find("copies").replaceChildren(...(drawn.length ? [select, ...texts, ...saved, link] : []));
}

function copy(what, text) {
  find("copied").textContent = text;
  find("copied").hidden = false;
  navigator.clipboard?.writeText(text).then(() => { find("status").textContent = `${what}: copied`; }, () => {});
}

async function save(indexes, ending) {
  const cases = indexes.map(caseOf), response = await ask(`/api/file/${ending}`, cases.length > 1 ? { cases } : cases[0]);
  if (!response.ok) { notice = (await response.json()).faults.join("\n"); return showRuns(); }
  const link = make("a", { href: URL.createObjectURL(await response.blob()), download: `${indexes.map(nameOf).join("-")}.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
