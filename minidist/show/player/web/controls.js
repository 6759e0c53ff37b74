// Keys, buttons, and the address: #scene=1f1b&step=9 opens a page where somebody has left it.

const toggle = () => (state.timer ? pause() : (closeQuestion(), play()));
const atStep = (tick) => { pause(); closeQuestion(); goTo(tick); };
const nextScene = () => { const now = correct.indexOf(state.scene.broken ? twinOf(state.scene) : state.scene); choose(correct[(now + 1) % correct.length]); };
const setTheme = (theme) => { document.documentElement.dataset.theme = theme; };
const unfold = () => $("more").setAttribute("aria-pressed", $("told").classList.toggle("unfolded"));
const follow = (where) => { if (animation.links[where]) location.href = animation.links[where]; };

const keys = {
  " ": forward, ArrowRight: forward, PageDown: forward,
  ArrowLeft: backward, PageUp: backward,
  Home: () => atStep(0), End: () => atStep(Infinity),
  p: toggle, b: breakIt, c: compare, s: nextScene, a: toggleAsking, n: toggleNotes, f: fullScreen,
  d: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  "?": () => { $("help").hidden = !$("help").hidden; },
  Escape: closePanels, "<": () => follow("previous"), ">": () => follow("next"), g: () => follow("gallery"),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const own = event.target.tagName === "BUTTON" && event.key === " "; // the key presses the button
  const dial = event.target.closest?.("#dials") && event.key.startsWith("Arrow"); // the key turns the dial
  if (own || dial || ["SELECT", "SUMMARY"].includes(event.target.tagName)) return;
  const digit = /^[1-9]$/.test(event.key) && Number(event.key);
  const action = digit ? () => (asking.now ? vote(digit - 1) : setSpeed(digit)) : keys[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
addEventListener("click", (event) => { // after a click, the next space is a step again
  if (event.detail && event.target.closest("button")) event.target.closest("button").blur();
  const id = event.target.dataset?.id;
  if (id) showHistory(panes.find((pane) => pane.stage.contains(event.target)), id);
});

function remember() {
  if (window.frameElement || !ready) return; // a notebook's frame has no address
  const scene = encodeURIComponent(state.scene.name), dials = state.dials.length ? `&dials=${state.dials.join(",")}` : "";
  history.replaceState(null, "", `#scene=${scene}&step=${state.tick}${dials}`);
}

function openAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const scene = scenes.find((one) => one.name === asked.get("scene")) ?? scenes[animation.first];
  const dials = (asked.get("dials")?.split(",") ?? []).map(Number);
  const fit = scene.dials.length && scene.dials.every((dial, i) => dial.values[dials[i]] !== undefined);
  show(scene, fit ? { dials } : {});
  goTo(Number(asked.get("step")) || 0);
}

correct.forEach((scene) => {
  const button = document.createElement("button");
  button.textContent = scene.name;
  button.onclick = () => choose(scene);
  $("scenes").append(button);
});
$("scenes").hidden = correct.length === 1; // nothing to choose
$("asking").hidden = !scenes.some((scene) => scene.questions.length);
$("speaking").hidden = !scenes.some((scene) => scene.cues.length);
for (const [where, sign] of [["previous", "‹"], ["gallery", "all"], ["next", "›"]]) {
  if (!animation.links[where]) continue;
  const link = Object.assign(document.createElement("a"), { href: animation.links[where], textContent: sign, title: where });
  $("links").append(link);
}
for (const [id, action] of Object.entries({
  break: breakIt, compare, asking: toggleAsking, speaking: toggleNotes, helping: keys["?"], theme: keys.d, more: unfold,
  first: keys.Home, back: backward, next: forward, play: toggle, reveal: forward,
})) $(id).onclick = action;
$("slider").oninput = () => atStep(Number($("slider").value));
$("speed").onchange = () => { setSpeed($("speed").value); $("speed").blur(); };
addEventListener("hashchange", openAddress);
addEventListener("resize", () => { fit(); goTo(state.tick); });

let dark = matchMedia("(prefers-color-scheme: dark)").matches;
if (window.frameElement) { // in a notebook: use the notebook's theme
  const light = parent.document.body.dataset.jpThemeLight;
  if (light) dark = light === "false";
}
setTheme(dark ? "dark" : "light");
let ready = false;
openAddress();
ready = true;
document.body.classList.add("ready");
