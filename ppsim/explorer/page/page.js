// Events: the start, a dropped file, a changed address.
const viewer = startViewer(find("viewer"), { framed: true, grow: 0.66, onState: (text) => { if (text !== state.view) { state.view = text; writeLink(); } } });

function showAll() {
  for (const run of runs) run.flight?.controller.abort();
  runs = state.schedules.map((_, index) => ({ result: runs[index]?.result, flight: null, took: 0 }));
  showControls();
  const kept = notice;
  change(all());
  notice = kept;
}

async function take(file) {   // draw a dropped file, or show the validator's faults
  if (!file) return;
  const csv = await file.text(), response = await ask("/api/validate", { csv }), found = await response.json();
  notice = found.faults ? `${file.name}:\n${found.faults.join("\n")}` : "";
  if (found.faults) return showRuns();
  if (state.schedules.length >= MOST) state.schedules.pop();
  state.schedules.push({ csv, name: file.name });
  showAll();
}

find("add").addEventListener("click", () => {
  state.schedules.push({ schedule: "interleaved-1f1b" });
  showAll();
  find("cards").lastElementChild.querySelector("select").focus();
});
find("cancel").addEventListener("click", cancelAll);
find("choose").addEventListener("click", () => find("file").click());
find("file").addEventListener("change", () => { take(find("file").files[0]); find("file").value = ""; });
document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  take(event.dataTransfer.files[0]);
});
window.addEventListener("hashchange", () => {
  if (location.hash === written) return;
  readLink();
  runs = [];
  shown = false;
  viewer.setState(state.view);
  showAll();
});

ask("/api/families").then((response) => response.json()).then((found) => {
  if (found.faults) throw new Error(found.faults.join("\n"));
  offer = found;
  readLink();
  viewer.setState(state.view);
  showAll();
}).catch((error) => { find("general").textContent = error.message; });
