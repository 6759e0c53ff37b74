// What is shown: a model and the place of its sliders. show/explorer/page.py writes the JSON.

const planned = await unpack($("planned").textContent);
const state = { model: null, place: [], tab: "costs", pinned: null, price: 0 };
const TABS = ["costs", "map-of-all", "places", "zoom"];
const keyOf = (model) => Object.keys(planned.models).find((key) => planned.models[key] === model);
const positionOf = (model, place) => Object.fromEntries(Object.entries(model.sliders).map(([slider, values], i) => [slider, values[place[i]]]));

for (const model of Object.values(planned.models)) model.sizes = Object.values(model.sliders).map((positions) => positions.length);

function show(model, place, { moved = -1, preset = null, quickest = false } = {}) {
  const another = model !== state.model;
  Object.assign(state, { model, place });
  if (another) buildControls();
  for (const control of $("controls").children) control.refresh?.();
  [...$("presets").children].forEach((button, i) => button.setAttribute("aria-pressed", planned.presets[i] === preset));
  const reason = reasonAt(model, place);
  document.body.classList.toggle("illegal", Boolean(reason));
  $("verdict").classList.toggle("wrong", Boolean(reason) || !look(model, place, "fits"));
  if (reason) refuse(reason, moved);
  else tell(preset, quickest);
  draw();
  write();
}

function draw() { // where no run can be, there are no numbers, but a map that leads away
  const illegal = Boolean(reasonAt(state.model, state.place));
  $("pin").disabled = illegal && !state.pinned;
  if (!$("map-of-all").hidden) drawMap();
  if (illegal) return;
  drawMemory();
  drawTime();
  drawFacts();
  drawLinks();
  drawPlaces();
}

function refuse(reason, moved) { // say why, and offer the nearest place that is legal
  $("outcome").textContent = "No run can be split this way.";
  $("because").textContent = `${reason.replace(/^[a-z]+ /, (word) => word[0].toUpperCase() + word.slice(1))}.`;
  const other = nearest(state.model, state.place, moved);
  const changes = Object.keys(state.model.sliders).map((slider, i) => (other[i] === state.place[i] ? "" : named(slider, state.model.sliders[slider][other[i]]))).filter(Boolean);
  const button = element("button", `nearest legal: ${changes.join(", ")}`, { id: "nearest" });
  button.addEventListener("click", () => show(state.model, other));
  $("ways").replaceChildren(button);
  $("range").textContent = "";
}

const largestOf = (parts) => parts.reduce((most, one) => (one.value > most.value ? one : most));

function tell(preset, quickest) {
  $("ways").replaceChildren();
  const { model, place } = state, total = look(model, place, "memory"), limit = planned.gpu.memory;
  const memory = largestOf(numbersOf("memory")), step = look(model, place, "step"), parts = numbersOf("time"), time = largestOf(parts);
  const { low, high, count: runs, held } = spread(), planned15 = look(model, place, "days");
  const excess = `${gigabytes(total)}, ${gigabytes(total - limit)} more than a GPU has`;
  const verdict = look(model, place, "fits") ? `Fits: ${gigabytes(total)} of ${three(limit)} GB.`
    : preset?.ran ? `${gigabytes(total - limit)} too much by this plan, yet it ran: ${preset.ran}.` : `Does not fit: ${excess}.`;
  $("outcome").textContent = `${verdict} ${three(planned.gpu.tokens / 1e12)}T tokens take ${between(planned15 * low, planned15 * high)}.`;
  $("range").textContent = `Published runs of this kind: ${low.toFixed(2)} to ${high.toFixed(2)} times as long as planned (8 in 10 of ${runs}; other sources predicted ${percent(held)}).`;
  const rest = parts.filter((one) => one !== time), second = rest.length ? largestOf(rest) : null;
  const where = `Largest in memory: ${memory.name}, ${gigabytes(memory.value)}. Largest in the step: ${time.name}, ${percent(time.value / step)}`;
  const then = second ? `; then ${second.name}, ${percent(second.value / step)}.` : ".";
  $("because").textContent = `${preset ? `${preset.note}. ` : quickest ? "Of all layouts here that fit and come within 1% of the quickest, this one splits least. " : ""}${where}${then}`;
}

const spread = () => planned.spreads[Number(positionOf(state.model, state.place).zero === 3)]; // of runs that shard as this one

function openTab(name) {
  for (const tab of TABS) {
    $(tab).hidden = tab !== name;
    $(`tab-${tab}`).setAttribute("aria-selected", tab === name);
  }
  state.tab = name;
  if (state.model) { draw(); write(); }
}

function write() { // the address of what is shown
  if (location.protocol === "about:") return;
  const where = new URLSearchParams({ model: keyOf(state.model), ...positionOf(state.model, state.place), tab: state.tab });
  history.replaceState(null, "", `#${where}`);
}

function read() { // what the address names, if it is all there is
  const where = Object.fromEntries(new URLSearchParams(location.hash.slice(1))), model = planned.models[where.model];
  const place = model && Object.entries(model.sliders).map(([slider, values]) => values.findIndex((value) => String(value) === where[slider]));
  if (!place || place.includes(-1)) return false;
  if (TABS.includes(where.tab)) openTab(where.tab);
  show(model, place);
  return true;
}

for (const tab of TABS) $(`tab-${tab}`).addEventListener("click", () => openTab(tab));
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
$("assumed").textContent = `Everything was planned by minidist for ${planned.gpu.name}; this page only looks it up. Parameters and activations have 16 bits, gradients and optimizer state 32; `
  + `${gigabytes(planned.assumed.reserved)} are reserved for CUDA and NCCL, and ${percent(planned.assumed.fragmentation)} of what a step allocates and frees is lost to fragmentation. dp fills the GPUs that tp, cp and pp leave. `
  + "fp8 is used only in the products of linear layers. Sequence parallelism is on wherever tp > 1; context parallelism is zigzag; a rank has as many interleaved stages as make the step shortest; ZeRO 2 and 3 sum gradients in every micro-batch. "
  + "MFU counts the pairs of tokens that the attention kernel computes: half of them with flash attention. Stragglers, failures and data loading are not counted.";
buildPresets();
buildPlaces();
buildZoom();
openTab("costs");
if (read()) { /* as the address says */ } else if (planned.presets.length) goPreset(0);
else { const model = Object.values(planned.models)[0]; show(model, nearest(model, model.sizes.map(() => 0))); }
addEventListener("hashchange", read);
new ResizeObserver(draw).observe($("costs"));
document.body.classList.add("ready");
