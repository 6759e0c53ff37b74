// What is shown: a model and the place of its sliders. show/explorer/page.py writes the JSON.

const planned = await unpack($("planned").textContent);
const state = { model: null, place: [] };

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
  if (reason) return refuse(reason, moved);
  $("ways").replaceChildren();
  tell(preset, quickest);
  draw();
}

function draw() {
  if (reasonAt(state.model, state.place)) return;
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
}

const largestOf = (parts) => parts.reduce((most, one) => (one.value > most.value ? one : most));

function tell(preset, quickest) {
  const { model, place } = state, total = look(model, place, "memory"), limit = planned.gpu.memory;
  const memory = largestOf(numbersOf("memory")), step = look(model, place, "step"), parts = numbersOf("time"), time = largestOf(parts);
  $("outcome").textContent = look(model, place, "fits")
    ? `Fits: ${gigabytes(total)} of the ${three(limit)} GB that a GPU has.`
    : `Does not fit: a GPU needs ${gigabytes(total)}, ${gigabytes(total - limit)} more than it has.`;
  const rest = parts.filter((one) => one !== time), second = rest.length ? largestOf(rest) : null;
  const where = `Largest in memory: ${memory.name}, ${gigabytes(memory.value)}. Largest in the step: ${time.name}, ${percent(time.value / step)}`;
  const then = second ? `; then ${second.name}, ${percent(second.value / step)}.` : ".";
  $("because").textContent = `${preset ? `${preset.note}. ` : quickest ? "The quickest of all layouts here that fit. " : ""}${where}${then}`;
}

function openTab(name) {
  for (const tab of ["costs", "places", "zoom"]) {
    $(tab).hidden = tab !== name;
    $(`tab-${tab}`).setAttribute("aria-selected", tab === name);
  }
  if (state.model) draw();
}

for (const tab of ["costs", "places", "zoom"]) $(`tab-${tab}`).addEventListener("click", () => openTab(tab));
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
$("assumed").textContent = `Everything was planned by minidist for ${planned.gpu.name}; this page only looks it up. Parameters and activations have 16 bits, gradients and optimizer state 32; `
  + `${gigabytes(planned.assumed.reserved)} are reserved for CUDA and NCCL, and ${percent(planned.assumed.fragmentation)} of what comes and goes is lost to fragmentation. dp fills the GPUs that tp, cp and pp leave. `
  + "fp8 is for the products of linear layers alone. Sequence parallelism is on wherever tp > 1; context parallelism is zigzag; a rank has as many interleaved stages as make the step shortest; ZeRO 2 and 3 sum gradients in every micro-batch. "
  + "MFU counts the pairs of tokens that the attention kernel computes: half of them with flash attention. Stragglers, failures and data loading are not counted.";
buildPresets();
buildPlaces();
buildZoom();
openTab("costs");
if (planned.presets.length) goPreset(0);
else { const model = Object.values(planned.models)[0]; show(model, nearest(model, model.sizes.map(() => 0))); }
new ResizeObserver(draw).observe($("costs"));
document.body.classList.add("ready");
