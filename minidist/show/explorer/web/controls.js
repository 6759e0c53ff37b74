// The sliders of a model, the presets, and the keys.

const RANGES = ["gpus", "tp", "cp", "pp", "ep", "sequence", "micro_batch"]; // the others are segmented
const FIXED = ["gpus", "sequence", "precision"]; // what the quickest layout is looked for with

function buildControls() {
  const form = $("controls"), model = state.model;
  const names = element("select", "", { id: "model", "aria-label": "model" });
  for (const [key, one] of Object.entries(planned.models)) {
    names.append(new Option(one.name, key, false, one === model));
  }
  names.addEventListener("change", () => { choose(names.value); $("model").focus(); }); // there is a new one now
  const about = `${three(model.parameters)} billion parameters, ${three(model.batch / 1e6)} million tokens in a step`;
  form.replaceChildren(names, element("small", about, { title: model.source }));
  Object.entries(model.sliders).forEach(([slider, positions], i) => {
    if (positions.length === 1 && slider !== "precision") return;
    form.append(RANGES.includes(slider) ? range(slider, positions, i) : segments(slider, positions, i));
  });
  const best = element("button", "quickest that fits", { id: "quickest", type: "button", title: "of all layouts with these GPUs, sequence and precision (q)" });
  best.addEventListener("click", goQuickest);
  const pin = element("button", state.pinned ? "unpin" : "pin, to compare", { id: "pin", type: "button", title: "show the numbers of this layout next to those of others (p)" });
  pin.addEventListener("click", pinThis);
  const price = element("label", "price of a GPU hour"), input = element("input", "", { id: "price", type: "number", min: 0, step: "any", placeholder: "none" });
  input.value = state.price || "";
  input.addEventListener("input", () => { state.price = Math.max(0, Number(input.value)) || 0; draw(); });
  price.append(input);
  form.append(best, pin, price);
}

function pinThis() {
  if ($("pin").disabled) return;
  state.pinned = state.pinned ? null : { model: state.model, place: state.place };
  $("pin").textContent = state.pinned ? "unpin" : "pin, to compare";
  draw();
}

function range(slider, positions, i) {
  const label = element("label", planned.sliders[slider]), value = element("output");
  const input = element("input", "", { type: "range", min: 0, max: positions.length - 1, id: `slider-${slider}` });
  input.addEventListener("input", () => move(i, Number(input.value)));
  label.append(value, input);
  label.refresh = () => {
    input.value = state.place[i];
    value.textContent = count(positions[state.place[i]]);
    input.setAttribute("aria-valuetext", value.textContent);
  };
  return label;
}

function segments(slider, positions, i) {
  const set = element("fieldset"), row = element("div", "", { class: "choices", role: "group" });
  set.append(element("legend", planned.sliders[slider]), row);
  const buttons = positions.map((position, number) => {
    const button = element("button", String(position), { type: "button", "data-slider": slider });
    button.addEventListener("click", () => move(i, number));
    row.append(button);
    return button;
  });
  set.refresh = () => buttons.forEach((button, number) => button.setAttribute("aria-pressed", number === state.place[i]));
  return set;
}

function buildPresets() {
  planned.presets.forEach((preset, number) => {
    const button = element("button", preset.name, { title: `${preset.note} (${number + 1})` });
    button.addEventListener("click", () => goPreset(number));
    $("presets").append(button);
  });
}

function goPreset(number) {
  const preset = planned.presets[number];
  if (!preset) return;
  show(planned.models[preset.model], placeOf(planned.models[preset.model], preset.position), { preset });
}

const placeOf = (model, position) => Object.entries(model.sliders).map(([slider, values]) => values.indexOf(position[slider]));

function choose(key) { // another model, with its sliders as near as they go to where they were
  const model = planned.models[key], before = Object.keys(state.model.sliders);
  const place = Object.entries(model.sliders).map(([slider, values]) => {
    const value = state.model.sliders[slider][state.place[before.indexOf(slider)]];
    if (typeof value === "string") return Math.max(0, values.indexOf(value));
    return values.filter((one, i) => i && one <= value).length;
  });
  show(model, reasonAt(model, place) ? nearest(model, place, 0) : place);
}

function move(slider, number) {
  show(state.model, state.place.map((old, i) => (i === slider ? number : old)), { moved: slider });
}

function goQuickest() {
  const sliders = Object.keys(state.model.sliders);
  const best = quickest(state.model, state.place, FIXED.map((slider) => sliders.indexOf(slider)));
  if (best) show(state.model, best, { quickest: true });
  else $("because").textContent = "No layout of this table fits on these GPUs at this sequence length: take more GPUs.";
}

const keys = {
  q: goQuickest, p: pinThis, m: () => openTab("costs"), a: () => openTab("map-of-all"), r: () => openTab("places"), z: () => openTab("zoom"),
  d: () => { document.documentElement.dataset.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; draw(); },
  "?": () => { $("help").hidden = !$("help").hidden; }, Escape: () => { $("help").hidden = true; },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input[type=number]")) return;
  if (/^[1-9]$/.test(event.key)) goPreset(Number(event.key) - 1);
  else if (keys[event.key]) keys[event.key]();
});
$("theme").addEventListener("click", keys.d);
$("helping").addEventListener("click", keys["?"]);
