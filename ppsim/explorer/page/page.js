// Events: the start, keys, a dropped file, a changed address.
let viewerParts = null;
const viewer = startViewer(find("viewer"), {
  arrange: (parts) => {   // the viewer's tools are in the bar, its range panel beside or below
    viewerParts = parts;
    parts.pane.prepend(make("div", { id: "lines" }));
    find("copy").before(parts.tools);
    find("range").prepend(parts.range);
  },
  isPhone: () => innerWidth <= 760,   // a chart beside the setup is no phone
  on: ["memory", "ledger"],
  keys: { Setup: [["\\", "show or hide it"], ["Ctrl Z", "undo"], ["Ctrl Shift Z", "do again"]] },
  onState: (text) => { if (text !== state.view) { state.view = text; writeLink(); showBase(); } },
  onDraw: showLines,
});

function showAll() {
  for (const run of runs) run.flight?.controller.abort();
  runs = state.schedules.map((one, index) => ({ result: runs[index]?.result, good: runs[index]?.good, flight: null }));
  const kept = [notice, undoes];
  change();
  showSetup();
  [notice, undoes] = kept;
}

async function take(file) {   // draw a dropped file, or show the validator's faults
  if (!file) return;
  const csv = await file.text(), response = await ask("/api/validate", { csv }), found = await response.json();
  notice = found.faults ? `${file.name}: ${sentences(found).replaceAll("dropped.csv: ", "")}` : "";
  if (found.faults) return showNotes();
  addFound({ csv, name: file.name });
}

find("fold").addEventListener("click", () => fold());
find("copy").addEventListener("click", showCopies);
find("skip").addEventListener("click", () => viewerParts.canvas.focus());
find("rail").addEventListener("focusin", () => { for (const run of runs) run.before = run.good; });   // what Undo goes back to, not to a number that is half typed
find("rail").addEventListener("pointerdown", () => document.activeElement.closest(".field")?.classList.add("left")); document.addEventListener("click", () => document.querySelector(".left")?.classList.remove("left"));   // its hint stays until the click
const open = (wanted) => find("views").setAttribute("aria-expanded", String(find("top").classList.toggle("open", wanted)));
find("views").addEventListener("click", () => open());
document.addEventListener("pointerdown", (event) => { if (!event.target.closest("#top")) open(false); });
viewerParts.switches.addEventListener("click", () => { if (innerWidth <= 760) open(false); });   // what was chosen is below the menu
find("range").querySelector("p").append(...[["the step", 0, 1], ["first half", 0, 0.5], ["second half", 0.5, 1]].map(([name, from, to]) => plain(name, () => viewer.select(from, to))));
find("tabs").append(...["Chart", "Setup", "Range", "Better"].map((name) => button(name, () => sheet(name))));
find("grip").addEventListener("click", () => sheet("Chart"));
find("file").addEventListener("change", () => { take(find("file").files[0]); find("file").value = ""; });
find("undo").addEventListener("click", () => { putLink(); history.back(); });
find("redo").addEventListener("click", () => history.forward());
document.addEventListener("keydown", (event) => {   // keys of the chart work wherever nothing is typed
  const typed = event.target.closest("input, dialog");   // the browser undoes what is half typed
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && (!typed || typed.told === String(typed.value))) { event.preventDefault(); find(event.shiftKey ? "redo" : "undo").click(); }
  if (event.defaultPrevented || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "\\") return fold();
  if (event.target.closest("details, canvas") || (event.target.closest("button") && [" ", "Enter"].includes(event.key))) return;
  viewer.press(event);
});
document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
document.addEventListener("drop", (event) => { event.preventDefault(); document.body.classList.remove("dropping"); take(event.dataTransfer.files[0]); });
window.addEventListener("resize", () => { if (shown) showTable(); });
window.addEventListener("popstate", showSteps);
window.addEventListener("hashchange", () => {
  if (location.hash === written) return;
  clearTimeout(writing);
  const is_shown = location.hash === `#${linkText()}`;   // a change that was taken back goes back in the history too
  if (is_shown) written = location.hash; else readLink();
  settled = linkText("");
  if (is_shown) return;
  if (!history.state) { runs = []; shown = false; }   // a new address; after Undo the last pictures stay until the answers come
  viewer.setState(state.view);
  showAll();
});

ask("/api/families").then((response) => response.json()).then((found) => {
  if (found.faults) throw new Error(sentences(found));
  offer = found;
  const [first] = Object.keys(offer.configs);
  readLink();
  viewer.setState(state.view);
  fold(innerWidth < 1100);
  sheet("Chart");
  if (first && location.hash.length < 2) { state.schedules = state.schedules.slice(0, 1); takeConfig(first); } else showAll();
}).catch((error) => { notice = error.message; showNotes(); });
