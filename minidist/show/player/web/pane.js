// A pane shows one scene at one moment. Two panes side by side share a clock: each shows its last frame until then.

const MOVE = 450; // ms that a thing takes to its new place

class Pane {
  constructor(root) {
    [this.title, this.stage, this.note] = root.children;
    this.drawn = []; // a pane without a scene has none
  }

  show(scene) { // nothing is visible yet
    this.scene = scene;
    this.frame = -1;
    this.title.textContent = scene.title;
    this.picture = svg("svg", { viewBox: `-4 -4 ${WIDTH * CHARACTER + 8} ${scene.height * LINE + 8}`, role: "img" });
    this.picture.setAttribute("aria-label", scene.title);
    this.drawn = scene.shapes.map(([kind, first, last, ...parts]) => {
      const elements = draw[kind](parts), id = kind === "box" ? parts[7] : "";
      for (const element of elements) {
        if (id) element.dataset.id = id;
        this.picture.append(element);
      }
      return { first, last, elements, id, place: parts };
    });
    this.stage.replaceChildren(this.picture);
  }

  get last() { return this.scene.notes.length - 1; }

  frameAt(time) { // the last one that has begun
    return Math.max(0, this.scene.times.findLastIndex((start) => start <= time));
  }

  goTo(time) {
    const before = this.frame, number = this.frameAt(time);
    this.frame = number;
    const was = this.firstBoxes(before), is = this.firstBoxes(number);
    for (const { first, last, elements, id } of this.drawn) {
      const seen = first <= number && number <= last;
      const isNew = seen && before >= 0 && !(first <= before && before <= last);
      const moved = isNew && id && was.get(id);
      for (const element of elements) {
        element.style.display = seen ? "" : "none";
        element.classList.toggle("new", isNew && !moved);
        if (moved) this.move(element, moved, is.get(id));
      }
    }
    this.note.textContent = this.scene.notes[number];
  }

  firstBoxes(frame) { // id -> where the thing is: its first box, for all its boxes move together
    const found = new Map();
    for (const { first, last, id, place } of this.drawn) if (id && first <= frame && frame <= last && !found.has(id)) found.set(id, place);
    return found;
  }

  move(element, [x, y], [toX, toY]) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches || (x === toX && y === toY)) return;
    const start = `translate(${(x - toX) * CHARACTER}px, ${(y - toY) * LINE}px)`;
    element.animate([{ transform: start }, { transform: "none" }], { duration: MOVE, easing: "ease-in-out" });
  }

  history(id) { // the frames in which a thing changes
    const frames = this.drawn.filter((shape) => shape.id === id).map((shape) => shape.first);
    return [...new Set(frames)].sort((a, b) => a - b);
  }

  highlight(id) {
    for (const { id: own, elements } of this.drawn) for (const element of elements) element.classList.toggle("chosen", Boolean(id) && own === id);
  }
}

function heightsOf(element, texts) { // of each of these texts, if it stood where this element stands
  const ruler = element.cloneNode();
  ruler.classList.add("ruler");
  ruler.style.width = `${element.clientWidth}px`;
  ruler.append(...texts.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
  element.after(ruler);
  const heights = [...ruler.children].map((child) => child.getBoundingClientRect().height);
  ruler.remove();
  return heights;
}
