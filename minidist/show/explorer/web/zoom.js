// From a tensor core to the building: what a level is made of, and the bandwidth for each GPU.

const bandwidth = (value) => (value >= 1e12 ? `${three(value / 1e12)} TB/s` : `${three(value / 1e9)} GB/s`);
const MOST = 512; // squares that are drawn

function buildZoom() {
  planned.zoom.forEach((level, number) => {
    const button = element("button", "", { role: "radio", "data-level": level.name }), bar = element("i"), frame = element("span");
    bar.style.width = `${100 * level.share}%`;
    frame.append(bar);
    button.append(element("strong", level.name), element("span", bandwidth(level.bandwidth)), frame);
    button.addEventListener("click", () => showLevel(number));
    button.addEventListener("keydown", (event) => {
      const other = number + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? 0);
      if (other !== number && planned.zoom[other]) { showLevel(other); $("levels").children[other].focus(); }
    });
    $("levels").append(button);
  });
  showLevel(2);
}

function showLevel(number) {
  const level = planned.zoom[number], svg = $("inside"), shown = Math.min(level.holds, MOST);
  [...$("levels").children].forEach((button, i) => button.setAttribute("aria-checked", i === number));
  const columns = Math.ceil(Math.sqrt(shown * 400 / 240)), rows = Math.ceil(shown / columns), side = Math.min(400 / columns, 240 / rows);
  svg.replaceChildren(...Array.from({ length: shown }, (_, i) => {
    const square = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ x: (i % columns) * side + side * 0.08, y: Math.floor(i / columns) * side + side * 0.08, width: side * 0.84, height: side * 0.84, rx: side * 0.08, fill: "#0072b2" })) square.setAttribute(name, value);
    return square;
  }));
  svg.setAttribute("aria-label", `${count(level.holds)} ${level.of}`);
  const text = $("level");
  text.replaceChildren(
    element("h2", `A ${level.name}: ${count(level.holds)} ${level.of}`),
    element("b", bandwidth(level.bandwidth)), element("p", `for each GPU, by ${level.link}`), element("p", level.note),
    ...(level.gpus > 1 ? [element("p", `${count(level.gpus)} GPUs.`)] : []),
    element("small", `Source: ${level.source}.`),
  );
}
