// What is shown: which scene, at which time, beside which other one. show/player/page.py writes the JSON and documents it.

const animation = await unpack($("animation").textContent);
const scenes = animation.scenes, correct = scenes.filter((scene) => !scene.broken);
const panes = [new Pane($("left")), new Pane($("right"))];
const GAP = 24; // pixels
const state = {
  scene: null, beside: null, // scenes; ``beside`` is in the right pane, if there is one
  room: 0, verdict: 0, // heights: of the note with the verdict, and of the verdict
  tick: 0, ticks: [], // the moments at which something changes in a pane, and which of them is shown
  dials: [], speed: Number($("speed").value), timer: null,
};

const twinOf = (scene) => (scene.broken // the same run without the bug, or with it if the bug can be shown there
  ? correct.find((one) => one.name === scene.twin) ?? (state.cameFrom ?? correct[0])
  : scenes.find((one) => one.broken && ["", scene.name].includes(one.twin)));

function variant(scene) { // the scene with the dials where they are
  if (!scene.dials.length) return scene;
  return scene.variants[scene.dials.reduce((index, dial, i) => index * dial.values.length + (state.dials[i] ?? dial.start), 0)];
}

function show(scene, { time = -Infinity, beside = null, dials = scene.dials.map((dial) => dial.start) } = {}) {
  if (!scene.broken) state.cameFrom = scene;
  Object.assign(state, { scene, beside, dials });
  const shown = [variant(scene), ...(beside ? [variant(beside)] : [])];
  shown.forEach((one, i) => panes[i].show(one));
  $("right").hidden = !beside;
  state.ticks = [...new Set(shown.flatMap((one) => one.times))].sort((a, b) => a - b);
  document.body.classList.toggle("broken", scene.broken);
  document.body.classList.toggle("compared", Boolean(beside));
  const bad = shown.find((one) => one.broken) ?? scene;
  $("bug").textContent = bad.broken ? `Broken: ${bad.bug || animation.bug}. ` : "";
  $("outcome").textContent = shown[0].verdict;
  $("forensics").textContent = shown[0].details;
  $("details").hidden = !shown[0].details;
  showBreak(scene);
  $("compare").setAttribute("aria-pressed", Boolean(beside));
  [...$("scenes").children].forEach((button, i) => {
    const chosen = correct[i] === (scene.broken ? twinOf(scene) : scene);
    button.setAttribute("aria-pressed", chosen);
    if (chosen) $("scenes").scrollLeft = button.offsetLeft - $("scenes").offsetLeft - GAP; // where they do not all fit
  });
  $("key").replaceChildren(...keyOf(shown));
  $("slider").max = state.ticks.length - 1;
  markWrong(shown.find((one) => one.first_wrong !== null));
  showDials(scene);
  showCode(shown[0]);
  closePanels();
  fit();
  goTo(Math.max(0, state.ticks.findLastIndex((start) => start <= time)));
}

function fit() { // the texts below the picture take as much room in every frame, so that it keeps its size
  const heights = panes.slice(0, state.beside ? 2 : 1).map((pane) => heightsOf(pane.note, pane.scene.notes));
  $("verdict").hidden = false;
  state.verdict = $("verdict").getBoundingClientRect().height + parseFloat(getComputedStyle(document.body).rowGap);
  const last = Math.max(...heights.map((one) => one.at(-1))) + state.verdict;
  state.room = Math.max(last, ...heights.flat().map((height) => height + (state.scene.broken ? state.verdict : 0)));
  $("told").className = "";
  const widest = Math.max(...panes[0].scene.facts.map((facts) => { showFacts(facts); return $("facts").scrollWidth; }));
  $("told").classList.toggle("apart", widest + $("key").offsetWidth + 2 * GAP > $("told").clientWidth);
  $("more").hidden = widest <= $("told").clientWidth;
}

function showBreak(scene) { // a scene that the bug leaves as it is says where the bug can be seen
  const places = correct.filter(twinOf).map((one) => one.name).join(", ");
  $("break").textContent = scene.broken ? "fix it" : "break it";
  $("break").disabled = !twinOf(scene);
  $("break").title = twinOf(scene) ? "inject the bug, or fix it again (b)" : `nothing to break here: the bug is in ${places}`;
}

function goTo(tick) {
  state.tick = Math.max(0, Math.min(state.ticks.length - 1, tick));
  const time = state.ticks[state.tick], atEnd = state.tick === state.ticks.length - 1;
  for (const pane of panes.slice(0, state.beside ? 2 : 1)) pane.goTo(time);
  const [{ scene, frame }] = panes;
  $("verdict").hidden = !atEnd && !state.scene.broken;
  $("outcome").style.visibility = $("details").style.visibility = atEnd ? "" : "hidden"; // their lines stay
  panes[0].note.style.minHeight = `${state.room - ($("verdict").hidden ? 0 : state.verdict)}px`;
  showFacts(scene.facts[frame]);
  [...$("code").children].forEach((line, i) => line.classList.toggle("lit", scene.lines[frame].includes(i)));
  $("slider").value = state.tick;
  $("slider").setAttribute("aria-valuetext", scene.notes[frame]);
  $("place").textContent = `${state.tick} of ${state.ticks.length - 1}`;
  showNotes();
  remember();
  if (state.timer && atEnd) pause();
}

function showFacts(facts) {
  $("facts").replaceChildren(...facts.map(([what, value]) => {
    const pair = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
    [dt.textContent, dd.textContent] = [what, value];
    pair.append(dt, dd);
    return pair;
  }));
}

function keyOf(shown) {
  const entries = new Map(shown.flatMap((scene) => scene.key.map((entry) => [entry[0], entry])));
  return [...entries.values()].map(([name, fill, filled]) => {
    const entry = document.createElement("span"), box = document.createElement("i");
    box.style[filled ? "background" : "border"] = filled ? colour(fill) : `3px solid ${colour(fill)}`;
    entry.append(box, name);
    return entry;
  });
}

function markWrong(scene) {
  $("tick").hidden = !scene;
  const place = scene && state.ticks.indexOf(scene.times[scene.first_wrong]) / Math.max(1, state.ticks.length - 1);
  if (scene) $("tick").style.left = `${100 * place}%`;
}

function showDials(scene) {
  $("dials").hidden = !scene.dials.length;
  $("dials").replaceChildren(...scene.dials.map((dial, i) => {
    const label = document.createElement("label"), input = document.createElement("input"), output = document.createElement("output");
    Object.assign(input, { type: "range", min: 0, max: dial.values.length - 1, value: state.dials[i] });
    input.setAttribute("aria-label", dial.name);
    output.textContent = dial.values[state.dials[i]];
    input.oninput = () => {
      pause();
      const dials = state.dials.with(i, Number(input.value)), atEnd = state.tick === state.ticks.length - 1;
      show(state.scene, { time: atEnd ? Infinity : state.ticks[state.tick], beside: state.beside, dials });
      $("dials").children[i].querySelector("input").focus();
    };
    label.append(dial.name, " ", input, " ", output);
    return label;
  }));
}

function showCode(scene) {
  $("code").hidden = !scene.code.length;
  $("code").replaceChildren(...scene.code.map((line) => {
    const item = document.createElement("li");
    item.textContent = line || " ";
    return item;
  }));
}

function pause() {
  clearInterval(state.timer);
  state.timer = null;
  $("play").textContent = "▶ play";
  $("play").setAttribute("aria-label", "play");
}

function play() {
  if (state.tick === state.ticks.length - 1) goTo(0);
  state.timer = setInterval(() => goTo(state.tick + 1), 2400 / 1.5 ** state.speed);
  $("play").textContent = "⏸ pause";
  $("play").setAttribute("aria-label", "pause");
}

function setSpeed(speed) {
  state.speed = Number(speed);
  $("speed").value = speed;
  if (state.timer) { pause(); play(); }
}

function breakIt() { // the same moment in the other run
  const other = twinOf(state.scene), time = state.ticks[state.tick];
  if (other) show(other, { time, beside: state.beside && state.scene, dials: other.dials.length ? state.dials : [] });
}

function compare() { // beside its broken twin or the next scene, or alone again; a scene chosen meanwhile takes the right place
  const time = state.ticks[state.tick], next = correct[(correct.indexOf(state.scene) + 1) % correct.length];
  show(state.scene, { time, beside: state.beside ? null : twinOf(state.scene) ?? next, dials: state.dials });
}

function choose(scene) {
  pause();
  const time = state.ticks[state.tick];
  if (state.beside && scene !== state.scene) show(state.scene, { time, beside: scene, dials: state.dials });
  else show(scene, { beside: state.beside });
}
