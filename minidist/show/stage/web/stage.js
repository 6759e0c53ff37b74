// Plays stories: every mark is an SVG element whose keyframes the browser animates; one clock scrubs them all.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
}

const { stories, width, height, links, first } = await unpack($("stories").textContent);
const right = stories.filter((one) => !one.broken);
const brokenOf = (story) => stories.find((one) => one.broken && one.name === story.name);
const rightOf = (story) => right.find((one) => one.name === story.name);
const colour = (name) => (name.startsWith("#") || name === "none" ? name : `var(--${name})`);

function inkOn(fill) { // black or white, whichever has more contrast, by the formula of WCAG 2
  if (!fill.startsWith("#")) return colour(["ink", "wrong", "right"].includes(fill) ? "paper" : "ink");
  const [red, green, blue] = [1, 3, 5].map((i) => parseInt(fill.slice(i, i + 2), 16) / 255).map((v) => (v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4));
  return (.2126 * red + .7152 * green + .0722 * blue + .05) ** 2 > .0525 ? "black" : "white";
}

function element(name, attributes = {}, parent = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

const upright = () => matchMedia("(max-width: 600px)").matches; // a phone, as in stage.css: two stages are one above the other
const sides = () => (upright() ? ["Above", "Below"] : ["Left", "Right"]);

class Stage { // one svg with the marks of a story
  constructor(svg) {
    this.svg = svg;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    new ResizeObserver(() => svg.setAttribute("preserveAspectRatio", upright() ? "none" : "xMidYMid")).observe(svg);
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
    const parts = [[group, outer], [shape, inner]];
    if (still.head) {
      const head = element("path", { d: `M ${still.head.map((point) => point.join(" ")).join(" L ")} Z` }, group);
      parts.push([head, all.map((key) => ({ fill: colour(key.fill), opacity: key.turn === 1 ? 1 : 0, easing: "steps(1)" }))]);
    }
    if (kind === "box" && still.text) {
      const words = element("text", { "font-size": still.size, "text-anchor": "middle", "font-weight": still.weight ?? 500 }, group);
      words.textContent = still.text;
      parts.push([words, all.map((key) => ({ fill: inkOn(key.fill), transform: `translate(${key.w / 2}px, ${key.h / 2}px)`,
        opacity: key.w > still.size * still.text.length / 2 ? 1 : 0, easing: "steps(1)" }))]);
    }
    for (const [target, frames] of parts) {
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
const state = { story: null, other: null, dials: [], time: 0, beat: -1, over: 0, playing: 0, asked: null, done: new Set(), votes: new Map() };
const turned = (story) => (story.dials.length
  ? story.variants[story.dials.reduce((index, dial, i) => index * dial.values.length + (state.dials[i] ?? dial.start), 0)] : story);

const endOf = (story) => story.beats.at(-1).at;
const ends = () => Math.max(...shown().map(endOf)); // of two runs, when the later one ends
const shown = () => [state.now, ...(state.other ? [turned(state.other)] : [])];

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function show(story, { time = 0, other = null, dials = story.dials.map((dial) => dial.start) } = {}) {
  stop();
  close();
  Object.assign(state, { story, other, dials, beat: -1 });
  state.now = turned(story);
  const bad = [story, other].find((one) => one?.broken);
  stage.show(state.now);
  if (other) beside.show(turned(other));
  $("beside").toggleAttribute("hidden", !other);
  $("question").textContent = state.now.question;
  $("bug").textContent = bad ? `Broken${other ? ` (${sides()[Number(bad !== story)].toLowerCase()})` : ""}: ${bad.broken}.` : "";
  $("bug").hidden = !bad;
  document.body.classList.toggle("broken", Boolean(story.broken));
  $("break").textContent = story.broken ? "fix it" : "break it";
  $("break").disabled = !twin(story);
  $("compare").disabled = !twin(story) && right.length < 2;
  $("compare").setAttribute("aria-pressed", Boolean(other));
  $("details").textContent = state.now.details;
  $("clock").max = ends();
  for (const button of $("scenes").children) button.setAttribute("aria-pressed", button.textContent === story.name);
  $("code").replaceChildren(...state.now.code.map((line) => make("li", { textContent: line || " " })));
  const key = new Map(shown().flatMap((one) => one.key).map((entry) => [entry.join(), entry])); // of both runs, each once
  $("key").replaceChildren(...[...key.values()].map(([name, fill]) => {
    const patch = make("i");
    patch.style.background = colour(fill);
    return make("span", {}, patch, name);
  }));
  showDials(story);
  goTo(time);
}

const twin = (story) => (story.broken ? rightOf(story) : brokenOf(story));

function showDials(story) {
  if (state.dialled !== story) makeDials(story);
  story.dials.forEach((dial, i) => {
    const [input, output] = $("dials").children[i].children;
    input.value = state.dials[i];
    output.textContent = ` ${dial.values[state.dials[i]]}`;
    input.setAttribute("aria-valuetext", dial.values[state.dials[i]]);
  });
}

function makeDials(story) { // once, since a mouse may hold one while it turns
  state.dialled = story;
  $("dials").hidden = !story.dials.length;
  $("dials").replaceChildren(...story.dials.map((dial, i) => {
    const input = make("input", { type: "range", min: 0, max: dial.values.length - 1 });
    input.setAttribute("aria-label", dial.name);
    input.oninput = () => {
      const share = state.time / ends(), dials = state.dials.with(i, Number(input.value));
      show(story, { dials, other: state.other });
      goTo(share * ends());
    };
    return make("label", {}, `${dial.name} `, input, make("output"));
  }));
}

function goTo(time) {
  const { beats } = state.now;
  state.time = Math.max(0, Math.min(ends(), time));
  stage.at(state.time);
  if (state.other) beside.at(state.time);
  $("clock").value = state.time;
  const beat = beats.findLastIndex((one) => one.at <= state.time + .001);
  const over = shown().filter((one) => endOf(one) <= state.time + .001).length;
  if (beat !== state.beat || over !== state.over) tell(beat, over);
}

function tell(beat, over) {
  Object.assign(state, { beat, over });
  const { story, now, other, time } = state, { says, facts, lines, cue } = now.beats[beat], last = beat === now.beats.length - 1;
  const outcomes = shown().map((one, i) => ({ ...one, side: other ? `${sides()[i]}: ` : "" })).filter((one) => last && one.verdict && endOf(one) <= time + .001);
  $("says").replaceChildren(says, ...outcomes.map(({ verdict, broken, side }) => make("b", { textContent: ` ${side}${verdict}`, className: broken ? "wrong" : "right" })));
  $("clock").setAttribute("aria-valuetext", says);
  $("facts").replaceChildren(...Object.entries(facts ?? {}).flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
  $("cue").textContent = cue;
  [...$("code").children].forEach((line, i) => line.classList.toggle("lit", lines.includes(i)));
  if (location.protocol !== "about:") history.replaceState(null, "", `#${encodeURIComponent(story.name)}${story.broken ? "!" : ""}${state.other ? "+" : ""}@${[beat, ...state.dials]}`);
}

function stop() {
  cancelAnimationFrame(state.playing);
  state.playing = 0;
}

function playTo(end) { // the clock runs to the next beat, at the speed of the story
  stop();
  let last = performance.now();
  const tick = (now) => {
    goTo(Math.min(end, state.time + Math.max(0, now - last) / 1000)); // the first picture may be older than the key
    last = now;
    state.playing = state.time < end ? requestAnimationFrame(tick) : 0;
  };
  state.playing = requestAnimationFrame(tick);
}

function ask(question, reveals) { // each click on a choice is a vote, for a class that raises hands
  const votes = state.votes.get(question.text) ?? question.choices.map(() => 0);
  state.votes.set(question.text, votes);
  state.asked = { question, reveals };
  $("text").textContent = question.text;
  $("reason").textContent = reveals ? question.reason : "▶ shows what happens.";
  $("choices").replaceChildren(...question.choices.map((choice, i) => make("li",
    { onclick: () => vote(i), className: reveals && i === question.answer ? "right" : "" },
    make("span", { textContent: choice }), make("b", { textContent: votes[i] ? ` ${votes[i]}` : "" }))));
  $("asked").hidden = false;
}

function vote(i) {
  const { question, reveals } = state.asked ?? {};
  if (!question || reveals || i >= question.choices.length) return;
  state.votes.get(question.text)[i] += 1;
  ask(question, reveals);
}

function close() {
  state.asked = null;
  $("asked").hidden = true;
}

function onward() { // what is asked or answered here, then the clock to the next beat
  const { now, beat, time, playing } = state, here = now.beats[beat], next = now.beats[beat + 1];
  const until = next?.at ?? ends();
  if (playing) { stop(); return goTo(until); }
  if (state.asked) close();
  else if ($("asking").checked && time <= here.at + .001) {
    for (const [question, reveals] of [[here.answers, true], [here.asks, false]]) {
      const name = question && `${reveals}${beat}${question.text}`;
      if (question && !state.done.has(name)) { state.done.add(name); return ask(question, reveals); }
    }
  }
  return until > time && playTo(until);
}

function backward() {
  stop();
  close();
  goTo(state.now.beats.findLast((one) => one.at < state.time - .001)?.at ?? 0);
}

const breakIt = () => twin(state.story)
  && show(twin(state.story), { time: state.time, other: state.other && state.story, dials: twin(state.story).dials.length ? state.dials : [] });
const following = (story) => right[(right.findIndex((one) => one.name === story.name) + 1) % right.length];
const compare = () => show(state.story, { time: state.time, other: state.other ? null : twin(state.story) ?? following(state.story), dials: state.dials });
const dark = () => document.documentElement.classList.toggle("dark");
const jump = (time) => { stop(); close(); goTo(time); };
const follow = (where) => links[where] && location.assign(links[where]);

function evidence() {
  $("panel").hidden = !$("panel").hidden;
  $("evidence").setAttribute("aria-expanded", !$("panel").hidden);
}

for (const [id, action] of Object.entries({ next: onward, back: backward, break: breakIt, compare, evidence })) $(id).onclick = action;
$("clock").oninput = () => jump(Number($("clock").value));
const KEYS = { b: breakIt, c: compare, e: evidence, d: dark, s: () => show(following(state.story)), q: () => { $("asking").click(); close(); },
  f: () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen()),
  "<": () => follow("previous"), ">": () => follow("next"), g: () => follow("gallery") };
const MOVES = { " ": onward, ArrowRight: onward, PageDown: onward, ArrowLeft: backward, PageUp: backward, Home: () => jump(0),
  End: () => jump(Infinity), Escape: () => (state.asked ? close() : $("panel").hidden || evidence()) };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || (event.target.matches("input[type=range]") && event.key.startsWith("Arrow"))) return;
  const action = MOVES[event.key] ?? ($("keys").checked ? KEYS[event.key] : null);
  if (event.key === " " && event.target.matches("button, input[type=checkbox]")) return;
  if (/^[1-6]$/.test(event.key) && state.asked) vote(Number(event.key) - 1);
  else if (action) { event.preventDefault(); action(); }
});
addEventListener("click", (event) => { // after the mouse, the space bar goes on and does not press that button again
  if (event.detail && document.activeElement.matches("button, input[type=checkbox]")) document.activeElement.blur();
});

$("scenes").replaceChildren(...right.map((story) => make("button", { textContent: story.name, onclick: () => show(story) })));
$("scenes").hidden = right.length < 2;
$("links").replaceChildren(...Object.entries(links).map(([name, href]) => make("a", { textContent: name, href })));
if (matchMedia("(prefers-color-scheme: dark)").matches) dark();

function hash() { // "" for one that is cut off within a letter
  try { return decodeURIComponent(location.hash); } catch { return ""; }
}

function open() { // what the address names
  const [, name, bad, two, beat, turns] = hash().match(/^#(.*?)(!?)(\+?)@(\d+)(?:,([\d,]+))?$/) ?? [];
  const wanted = right.find((one) => one.name === name), chosen = wanted ? (bad && brokenOf(wanted)) || wanted : stories[first];
  const dials = chosen.dials.map((dial, i) => Math.min(turns?.split(",")[i] ?? dial.start, dial.values.length - 1));
  state.dials = dials;
  show(chosen, { time: turned(chosen).beats[beat]?.at ?? 0, other: two ? twin(chosen) ?? following(chosen) : null, dials });
}

addEventListener("hashchange", open);
open();
document.body.dataset.ready = "yes";
