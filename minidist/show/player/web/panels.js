// What can be opened beside the picture: notes for the speaker, the history of one thing, and help.

function closePanels() {
  closeQuestion();
  for (const name of ["history", "help"]) $(name).hidden = true;
  panes.forEach((pane) => pane.highlight(""));
}

function toggleNotes() {
  $("notes").hidden = !$("notes").hidden;
  showNotes();
}

function showNotes() {
  if ($("notes").hidden) return;
  const { scene, frame } = panes[0], minutes = scene.cues.reduce((sum, cue) => sum + cue.minutes, 0);
  const now = scene.cues.filter((cue) => cue.frame <= frame).at(-1), next = scene.cues.find((cue) => cue.frame > frame);
  const lines = [
    `${scene.name}: ${minutes} minutes in all`,
    now && `now (${now.minutes} min): ${now.text}`,
    next && `at step ${next.frame}: ${next.text}`,
    ...scene.questions.filter((one) => (one.asked || one.frame) > frame).slice(0, 1)
      .map((one) => `question before step ${one.asked || one.frame}: ${one.text}`),
  ];
  $("notes").replaceChildren(...lines.filter(Boolean).map((line) => Object.assign(document.createElement("p"), { textContent: line })));
}

function showHistory(pane, id) {
  panes.forEach((one) => one.highlight(one === pane ? id : ""));
  $("history").hidden = false;
  const title = document.createElement("h2"), list = document.createElement("ol");
  title.textContent = id;
  list.append(...pane.history(id).map((frame) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.textContent = pane.scene.notes[frame];
    button.onclick = () => goTo(state.ticks.indexOf(pane.scene.times[frame]));
    item.value = frame;
    item.append(button);
    return item;
  }));
  $("history").replaceChildren(title, list);
}

function fullScreen() {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen?.();
}
