// Plays stories: every mark is an SVG element whose keyframes the browser animates; one clock scrubs them all.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
}

const { stories, width, height, links } = await unpack($("stories").textContent);
const right = stories.filter((one) => !one.broken);
const brokenOf = (story) => stories.find((one) => one.broken && one.name === story.name);
const rightOf = (story) => right.find((one) => one.name === story.name);
const colour = (name) => (name.startsWith("#") ? name : `var(--${name})`);

function element(name, attributes = {}, parent = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

class Stage { // one svg with the marks of a story
  constructor(svg) {
    this.svg = svg;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  }

  show(story) {
    this.svg.replaceChildren();
    this.moving = [];
    for (const mark of story.marks) this.draw(mark, Math.max(...story.beats.map((beat) => beat.at), .001));
  }

  draw([kind, still, thing, keys], ends) {
    const all = []; // keyframes with every value, which the data writes only where it changes
    for (const [at, news] of keys) all.push({ at, ...all.at(-1), ...news, ...{ at } });
    const first = all[0], group = element("g", {}, this.svg);
    if (thing) element("title", {}, group).textContent = thing;
    let shape = group;
    if (kind === "box") {
      shape = element("rect", { width: 1, height: 1 }, group);
      if (still.stroke) Object.assign(shape.style, { stroke: colour(still.stroke), strokeWidth: still.width ?? 3, vectorEffect: "non-scaling-stroke" });
      if (still.round && all.every((key) => key.w === first.w && key.h === first.h)) shape.setAttribute("rx", still.round);
    } else if (kind === "text") {
      shape = element("text", { "font-size": still.size, "text-anchor": still.anchor, "font-weight": still.weight ?? 500 }, group);
      shape.textContent = still.text;
    } else {
      const way = still.points.map((point) => point.join(" ")).join(" L ");
      shape = element("path", { d: `M ${way}${still.closed ? " Z" : ""}`, fill: "none", pathLength: 1, "stroke-width": still.width,
        "stroke-linecap": "round", "stroke-linejoin": "round" }, group);
    }
    const fixed = kind === "box" && shape.hasAttribute("rx"); // its corners stay round if its size is not scaled
    if (fixed) { shape.setAttribute("width", first.w); shape.setAttribute("height", first.h); }
    const paint = kind === "line" ? "stroke" : "fill";
    const outer = all.map((key) => ({ transform: `translate(${key.x}px, ${key.y}px)`, opacity: key.opacity }));
    const inner = all.map((key) => ({ [paint]: colour(key.fill), ...(kind === "box" && !fixed && { transform: `scale(${key.w}, ${key.h})` }),
      ...(kind === "line" && !still.closed && { strokeDasharray: "1 1", strokeDashoffset: 1 - key.turn }) }));
    for (const [target, frames] of [[group, outer], [shape, inner]]) {
      if (frames.every((frame) => JSON.stringify(frame) === JSON.stringify(frames[0]))) Object.assign(target.style, frames[0]);
      else this.animate(target, frames, all, ends);
    }
  }

  animate(target, frames, keys, ends) {
    const placed = frames.map((frame, i) => ({ ...frame, offset: Math.min(1, keys[i].at / ends) }));
    if (placed.at(-1).offset < 1) placed.push({ ...placed.at(-1), offset: 1 });
    const animation = target.animate(placed, { duration: ends * 1000, fill: "both" });
    animation.pause();
    this.moving.push(animation);
  }

  at(time) { for (const animation of this.moving) animation.currentTime = time * 1000; }
}

const stage = new Stage($("stage")), beside = new Stage($("beside"));
const state = { story: null, other: null, time: 0, beat: 0, playing: 0, asked: null, votes: [] };

function show(story, { time = 0, other = null } = {}) {
  stop();
  Object.assign(state, { story, other });
  stage.show(story);
  if (other) beside.show(other);
  $("beside").hidden = !other;
  $("question").textContent = story.question;
  document.body.classList.toggle("broken", Boolean(story.broken));
  $("break").textContent = story.broken ? "fix it" : "break it";
  $("break").disabled = !(story.broken ? rightOf(story) : brokenOf(story));
  $("compare").setAttribute("aria-pressed", Boolean(other));
  $("clock").max = story.beats.at(-1).at;
  for (const button of $("scenes").children) button.setAttribute("aria-pressed", button.textContent === story.name);
  $("code").replaceChildren(...story.code.map((line) => Object.assign(document.createElement("li"), { textContent: line || " " })));
  goTo(time);
}

function goTo(time) {
  const { story } = state;
  state.time = Math.max(0, Math.min(story.beats.at(-1).at, time));
  stage.at(state.time);
  if (state.other) beside.at(state.time);
  $("clock").value = state.time;
  const beat = story.beats.findLastIndex((one) => one.at <= state.time + .001);
  if (beat !== state.beat || !$("says").textContent) tell(beat);
}

function tell(beat) {
  state.beat = beat;
  const { story } = state, { says, facts, lines, cue } = story.beats[beat], last = beat === story.beats.length - 1;
  $("says").textContent = last && story.verdict ? `${says} ${story.verdict}` : says;
  $("facts").replaceChildren(...Object.entries(facts ?? {}).flatMap(([name, value]) => [["dt", name], ["dd", value]].map(([tag, words]) =>
    Object.assign(document.createElement(tag), { textContent: words }))));
  $("verdict").textContent = story.broken ? `Broken: ${story.broken}.` : "";
  $("cue").textContent = cue;
  [...$("code").children].forEach((line, i) => line.classList.toggle("lit", lines.includes(i)));
  location.replace(`#${encodeURIComponent(story.name)}${story.broken ? "!" : ""}${state.other ? "+" : ""}@${beat}`);
}

function stop() { cancelAnimationFrame(state.playing); state.playing = 0; }

function playTo(end) { // the clock runs to the next beat, at the speed of the story
  stop();
  let last = performance.now();
  const tick = (now) => {
    goTo(Math.min(end, state.time + (now - last) / 1000));
    last = now;
    state.playing = state.time < end ? requestAnimationFrame(tick) : 0;
  };
  state.playing = requestAnimationFrame(tick);
}

function ask(question) {
  state.asked = question;
  state.votes = question.choices.map(() => 0);
  $("asked").hidden = false;
  $("text").textContent = question.text;
  $("reason").textContent = "";
  $("reveal").hidden = true;
  $("choices").replaceChildren(...question.choices.map((choice, i) => {
    const item = document.createElement("li"), count = document.createElement("b");
    item.append(choice, count);
    item.onclick = () => vote(i);
    return item;
  }));
}

function vote(i) {
  if (!state.asked || !(i in state.votes)) return;
  state.votes[i] += 1;
  $("choices").children[i].querySelector("b").textContent = ` ${state.votes[i]} ✋`;
}

function answer(question) {
  ask(question);
  $("choices").children[question.answer].className = "right";
  $("reason").textContent = question.reason;
}

function onward() {
  const { story, beat, time } = state, here = story.beats[beat];
  if (state.playing) { stop(); goTo(story.beats[beat + 1]?.at ?? time); return; }
  if (!$("asked").hidden) { $("asked").hidden = true; state.asked = null; }
  else if (time >= here.at && here.asks && state.done !== here) { state.done = here; ask(here.asks); return; }
  else if (time >= here.at && here.answers && state.done !== here) { state.done = here; answer(here.answers); return; }
  if (story.beats[beat + 1]) playTo(story.beats[beat + 1].at);
}

function backward() {
  stop();
  $("asked").hidden = true;
  state.done = null;
  const { story, time } = state;
  goTo(story.beats.findLast((one) => one.at < time - .001)?.at ?? 0);
}

const breakIt = () => {
  const other = state.story.broken ? rightOf(state.story) : brokenOf(state.story);
  if (other) show(other, { time: state.time, other: state.other && state.story });
};
const compare = () => {
  const other = state.story.broken ? rightOf(state.story) : brokenOf(state.story) ?? right.find((one) => one !== state.story);
  show(state.story, { time: state.time, other: state.other ? null : other });
};
const evidence = () => {
  $("evidence").hidden = !$("evidence").hidden;
  $("more").setAttribute("aria-expanded", !$("evidence").hidden);
};
const theme = () => document.documentElement.classList.toggle("dark");

Object.assign($("next"), { onclick: onward });
Object.assign($("back"), { onclick: backward });
Object.assign($("break"), { onclick: breakIt });
Object.assign($("compare"), { onclick: compare });
Object.assign($("more"), { onclick: evidence });
Object.assign($("theme"), { onclick: theme });
$("clock").oninput = () => { stop(); goTo(Number($("clock").value)); };
const KEYS = { " ": onward, ArrowRight: onward, ArrowLeft: backward, b: breakIt, c: compare, e: evidence, d: theme,
  s: () => show(right[(right.findIndex((one) => one.name === state.story.name) + 1) % right.length]),
  Home: () => goTo(0), End: () => goTo(Infinity) };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^[1-6]$/.test(event.key) && state.asked) vote(Number(event.key) - 1);
  else if (KEYS[event.key]) { event.preventDefault(); KEYS[event.key](); }
});

$("scenes").replaceChildren(...right.map((story) => Object.assign(document.createElement("button"),
  { textContent: story.name, onclick: () => show(story) })));
$("scenes").hidden = right.length < 2;
if (matchMedia("(prefers-color-scheme: dark)").matches) theme();

const [, name, bad, two, beat] = decodeURIComponent(location.hash).match(/^#(.*?)(!?)(\+?)@(\d+)$/) ?? [];
const wanted = right.find((one) => one.name === name) ?? right[0], chosen = bad ? brokenOf(wanted) ?? wanted : wanted;
show(chosen, { time: chosen.beats[beat]?.at ?? 0, other: two ? (bad ? wanted : brokenOf(wanted)) : null });
document.body.dataset.ready = "yes";
