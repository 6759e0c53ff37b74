"use strict";
// Plays the animation that the page contains as JSON; show/player/page.py writes it and documents its parts.
const CHARACTER = 10, LINE = 20; // pixels: the picture is a grid of characters
const animation = JSON.parse(document.getElementById("animation").textContent);
const $ = (id) => document.getElementById(id);
const state = { scene: 0, frame: 0, speed: Number($("speed").value), timer: null, unbroken: 0 }; // unbroken: the scene to return to from the broken one

function colour(name) {
  return name === null ? "none" : name.startsWith("#") ? name : `var(--${name})`;
}

function inkOn(name) { // black, white or a theme colour, whichever is readable on this one
  if (name === null || name === "paper" || name === "faint") return "var(--ink)";
  if (!name.startsWith("#")) return "var(--paper)";
  const light = [1, 3, 5].map((i) => parseInt(name.slice(i, i + 2), 16) / 255);
  const [r, g, b] = light.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05) ** 2 > 1.05 * 0.05 ? "#000" : "#fff"; // contrast as in WCAG
}

function svg(name, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

const draw = {
  box([x, y, w, h, fill, text, outline]) {
    const place = { x: x * CHARACTER, y: y * LINE, width: w * CHARACTER, height: h * LINE };
    const thick = outline === null || outline === "faint" ? 1 : 3;
    const found = [svg("rect", { ...place, style: `fill:${colour(fill)};stroke:${colour(outline)};stroke-width:${thick}` })];
    const fits = text.slice(0, Math.floor(w + 0.5));
    if (fits) {
      const middle = { x: (x + w / 2) * CHARACTER, y: (y + h / 2) * LINE, "text-anchor": "middle" };
      found.push(svg("text", { ...middle, style: `fill:${inkOn(fill)}` }, fits));
    }
    return found;
  },
  label([x, y, text, name, anchor]) {
    // mixed with the ink, so that blue is readable on black and yellow on white
    const fill = name === "faint" ? "var(--quiet)" : `color-mix(in srgb, ${colour(name)} 72%, var(--ink))`;
    return [svg("text", { x: x * CHARACTER, y: y * LINE, "text-anchor": anchor, style: `fill:${fill}` }, text)];
  },
  arrow([x, y, toX, toY, name, bend]) {
    const [x1, y1, x2, y2] = [x * CHARACTER, y * LINE, toX * CHARACTER, toY * LINE];
    const [cx, cy] = [(x1 + x2) / 2 + 2 * bend * CHARACTER, (y1 + y2) / 2];
    const angle = Math.atan2(y2 - cy, x2 - cx);
    const corner = (turn) => `${x2 - 11 * Math.cos(angle + turn)},${y2 - 11 * Math.sin(angle + turn)}`;
    const line = { d: `M${x1},${y1}Q${cx},${cy} ${x2},${y2}`, pathLength: 1 };
    return [
      svg("path", { ...line, style: `fill:none;stroke:${colour(name)};stroke-width:3` }),
      svg("polygon", { points: `${x2},${y2} ${corner(0.45)} ${corner(-0.45)}`, style: `fill:${colour(name)}` }),
    ];
  },
};

function showScene(number, frame = 0) {
  state.scene = number;
  const scene = animation.scenes[number], broken = number === animation.scenes.length - 1;
  if (!broken) state.unbroken = number;
  const picture = svg("svg", { viewBox: `-4 -4 ${72 * CHARACTER + 8} ${scene.height * LINE + 8}`, role: "img" });
  picture.setAttribute("aria-label", scene.title);
  scene.drawn = scene.shapes.map(([kind, first, last, ...rest]) => {
    const elements = draw[kind](rest);
    for (const element of elements) picture.append(element);
    return { first, last, elements };
  });
  $("stage").replaceChildren(picture);
  document.body.classList.toggle("broken", broken);
  $("title").textContent = scene.title;
  $("bug").textContent = broken ? `Broken: ${animation.bug}. ` : "";
  $("outcome").textContent = scene.verdict;
  $("break").textContent = broken ? "fix it" : "break it";
  [...$("scenes").children].forEach((button, i) => button.setAttribute("aria-pressed", i === number));
  $("key").replaceChildren(...scene.key.map(([name, fill, filled]) => {
    const entry = document.createElement("span"), box = document.createElement("i");
    box.style[filled ? "background" : "border"] = filled ? colour(fill) : `3px solid ${colour(fill)}`;
    entry.append(box, name);
    return entry;
  }));
  $("slider").max = scene.notes.length - 1;
  $("tick").hidden = scene.first_wrong === null;
  if (scene.first_wrong !== null) $("tick").style.left = `${(100 * scene.first_wrong) / Math.max(1, scene.notes.length - 1)}%`;
  state.frame = -1; // nothing is visible yet, so nothing fades in
  showFrame(frame);
}

function showFrame(number) {
  const scene = animation.scenes[state.scene], before = state.frame;
  state.frame = Math.max(0, Math.min(scene.notes.length - 1, number));
  for (const { first, last, elements } of scene.drawn) {
    const seen = first <= state.frame && state.frame <= last;
    const isNew = seen && before >= 0 && !(first <= before && before <= last);
    for (const element of elements) {
      element.style.display = seen ? "" : "none";
      element.classList.toggle("new", isNew);
    }
  }
  $("outcome").style.visibility = state.frame === scene.notes.length - 1 ? "" : "hidden"; // its lines stay, so nothing moves
  $("note").textContent = scene.notes[state.frame];
  $("facts").replaceChildren(...scene.facts[state.frame].map(([what, value]) => {
    const pair = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
    [dt.textContent, dd.textContent] = [what, value];
    pair.append(dt, dd);
    return pair;
  }));
  $("slider").value = state.frame;
  $("slider").setAttribute("aria-valuetext", scene.notes[state.frame]);
  $("place").textContent = `${state.frame} of ${scene.notes.length - 1}`;
  if (state.timer && state.frame === scene.notes.length - 1) pause();
}

const step = (by) => { pause(); showFrame(state.frame + by); };

function play() {
  if (state.frame === animation.scenes[state.scene].notes.length - 1) showFrame(0);
  state.timer = setInterval(() => showFrame(state.frame + 1), 2400 / 1.5 ** state.speed);
  $("play").textContent = "⏸ pause";
  $("play").setAttribute("aria-label", "pause");
}

function pause() {
  clearInterval(state.timer);
  state.timer = null;
  $("play").textContent = "▶ play";
  $("play").setAttribute("aria-label", "play");
}

const toggle = () => (state.timer ? pause() : play());

function setSpeed(speed) {
  state.speed = Number(speed);
  $("speed").value = speed;
  if (state.timer) { pause(); play(); }
}

function breakIt() { // the same step in the other run, if it has one
  const last = animation.scenes.length - 1;
  const twin = animation.scenes.findIndex((scene) => scene.name === animation.scenes[last].twin);
  if (state.scene === last) return showScene(state.unbroken, state.frame);
  const other = twin >= 0 && state.scene !== twin; // then this step is not in the broken run
  showScene(last, other ? 0 : state.frame);
  if (other) state.unbroken = twin;
}

function setTheme(theme) { document.documentElement.dataset.theme = theme; }

const keys = {
  " ": () => step(1), ArrowRight: () => step(1), PageDown: () => step(1),
  ArrowLeft: () => step(-1), PageUp: () => step(-1),
  Home: () => step(-Infinity), End: () => step(Infinity),
  p: toggle, b: breakIt,
  s: () => showScene((state.unbroken + 1) % (animation.scenes.length - 1)),
  d: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const pressed = event.target.tagName === "BUTTON" && event.key === " "; // the key presses the button
  if (pressed || event.target.tagName === "SELECT") return;
  const action = /^[1-9]$/.test(event.key) ? () => setSpeed(event.key) : keys[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
addEventListener("click", (event) => { // after a click, the next space is a step again
  if (event.detail && event.target.tagName === "BUTTON") event.target.blur();
});

animation.scenes.slice(0, -1).forEach((scene, i) => {
  const button = document.createElement("button");
  button.textContent = scene.name;
  button.onclick = () => { pause(); showScene(i); };
  $("scenes").append(button);
});
$("scenes").hidden = animation.scenes.length === 2; // nothing to choose
$("break").onclick = breakIt;
$("theme").onclick = keys.d;
$("first").onclick = keys.Home;
$("back").onclick = keys.ArrowLeft;
$("next").onclick = keys.ArrowRight;
$("play").onclick = toggle;
$("slider").oninput = () => { pause(); showFrame(Number($("slider").value)); };
$("speed").onchange = () => { setSpeed($("speed").value); $("speed").blur(); };

let dark = matchMedia("(prefers-color-scheme: dark)").matches;
if (window.frameElement) { // in a notebook: use the notebook's theme
  const light = parent.document.body.dataset.jpThemeLight;
  if (light) dark = light === "false";
}
setTheme(dark ? "dark" : "light");
showScene(animation.first);
