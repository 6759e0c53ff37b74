// Predict, then reveal: before a frame that answers a question, the player stops and asks. Each click on a choice is a
// vote, for a class that raises hands; the next step reveals the answer and its reason.

const asking = { on: true, now: null, votes: [], done: new Set() };

function questionBefore(tick) { // the question that the step to this tick would answer
  const scene = panes[0].scene, frame = panes[0].frameAt(state.ticks[tick]);
  if (!asking.on || frame === panes[0].frame) return null;
  return scene.questions.find((one) => one.frame === frame && !asking.done.has(one.text)) ?? null;
}

function ask(question) {
  Object.assign(asking, { now: question, votes: question.choices.map(() => 0) });
  $("question").textContent = question.text;
  $("reason").textContent = "";
  $("choices").replaceChildren(...question.choices.map((text, i) => {
    const button = document.createElement("button"), votes = document.createElement("b"), bar = document.createElement("i");
    button.append(bar, `${i + 1}  ${text} `, votes);
    button.onclick = () => vote(i);
    return button;
  }));
  $("reveal").textContent = "reveal";
  $("asked").hidden = false;
}

function vote(number) {
  if (!asking.now || asking.done.has(asking.now.text) || number >= asking.votes.length) return;
  asking.votes[number] += 1;
  const most = Math.max(...asking.votes);
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

function closeQuestion() {
  asking.now = null;
  $("asked").hidden = true;
}

function forward() { // a step, or the question before it, or its answer
  pause();
  if (asking.now) return asking.done.has(asking.now.text) ? closeQuestion() : reveal();
  const question = state.tick + 1 < state.ticks.length ? questionBefore(state.tick + 1) : null;
  return question ? ask(question) : goTo(state.tick + 1);
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
