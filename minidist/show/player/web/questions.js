// Predict, then reveal: the player stops before a frame and asks. Each click on a choice is a vote, for a class that
// raises hands. The next step reveals the answer and its reason, or, if a later frame answers the question, goes on there.

const asking = { on: true, now: null, votes: [], done: new Set(), waiting: new Map() }; // waiting: question -> its votes

function questionBefore(tick) { // the question that is asked, or answered, on the step to this tick
  const scene = panes[0].scene, frame = panes[0].frameAt(state.ticks[tick]);
  if (!asking.on || frame === panes[0].frame) return null;
  const open = scene.questions.filter((one) => !asking.done.has(one.text));
  return open.find((one) => one.frame === frame && (!one.asked || one.asked === frame || asking.waiting.has(one)))
    ?? open.find((one) => one.asked === frame && !asking.waiting.has(one)) ?? null;
}

function ask(question) {
  const later = question.asked && question.asked < question.frame && !asking.waiting.has(question);
  Object.assign(asking, { now: question, later, votes: asking.waiting.get(question) ?? question.choices.map(() => 0) });
  $("question").textContent = question.text;
  $("reason").textContent = "";
  $("choices").replaceChildren(...question.choices.map((text, i) => {
    const button = document.createElement("button"), votes = document.createElement("b"), bar = document.createElement("i");
    button.append(bar, `${i + 1}  ${text} `, votes);
    button.onclick = () => vote(i);
    return button;
  }));
  $("reveal").textContent = later ? "watch" : "reveal";
  $("asked").hidden = false;
  showVotes();
}

function vote(number) {
  if (!asking.now || asking.done.has(asking.now.text) || number >= asking.votes.length) return;
  asking.votes[number] += 1;
  showVotes();
}

function showVotes() {
  const most = Math.max(1, ...asking.votes);
  [...$("choices").children].forEach((button, i) => {
    button.querySelector("b").textContent = asking.votes[i] || "";
    button.querySelector("i").style.width = `${(100 * asking.votes[i]) / most}%`;
  });
}

function reveal() {
  const { now: question } = asking;
  asking.done.add(question.text);
  [...$("choices").children].forEach((button, i) => button.classList.add(i === question.answer ? "right" : "other"));
  $("reason").textContent = question.reason;
  $("reveal").textContent = "go on";
  goTo(state.tick + 1);
}

function watch() { // the answer comes with a later frame
  asking.waiting.set(asking.now, asking.votes);
  closeQuestion();
  goTo(state.tick + 1);
}

function closeQuestion() {
  asking.now = null;
  $("asked").hidden = true;
}

function forward() { // a step, or the question before it, or its answer
  pause();
  if (asking.now) return asking.done.has(asking.now.text) ? closeQuestion() : asking.later ? watch() : reveal();
  const question = state.tick + 1 < state.ticks.length ? questionBefore(state.tick + 1) : null;
  if (!question) return goTo(state.tick + 1);
  ask(question);
  return asking.waiting.has(question) && reveal(); // this frame answers what was asked before
}

function backward() {
  pause();
  if (asking.now) return closeQuestion();
  return goTo(state.tick - 1);
}

function toggleAsking() {
  asking.on = !asking.on;
  closeQuestion();
  $("asking").setAttribute("aria-pressed", asking.on);
}
