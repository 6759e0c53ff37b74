// From a tensor core to the building: what a level is made of, and the bandwidth for each GPU.

const bandwidth = (value) => (value >= 1e12 ? `${three(value / 1e12)} TB/s` : `${three(value / 1e9)} GB/s`);
const WIDTH = 400, HEIGHT = 240; // of the picture

function* tiles(left, top, width, height, count) { // squares side by side, as large as they can be: left, top, side
  let columns = 1;
  const sideOf = (across) => Math.min(width / across, height / Math.ceil(count / across));
  for (let across = 2; across <= count; across++) if (sideOf(across) > sideOf(columns)) columns = across;
  const side = sideOf(columns);
  for (let i = 0; i < count; i++) yield [left + (i % columns) * side, top + Math.floor(i / columns) * side, side];
}

function square(x, y, side, fill) {
  const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const place = { x: x + side * 0.06, y: y + side * 0.06, width: side * 0.88, height: side * 0.88, rx: side * 0.06, fill };
  for (const [name, value] of Object.entries(place)) rect.setAttribute(name, value);
  return rect;
}

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
  const level = planned.zoom[number], inner = planned.zoom[number - 1], svg = $("inside");
  [...$("levels").children].forEach((button, i) => button.setAttribute("aria-checked", i === number));
  const squares = [];
  for (const [x, y, side] of tiles(0, 0, WIDTH, HEIGHT, level.holds)) {
    squares.push(square(x, y, side, "#0072b2"));
    for (const [a, b, small] of inner ? tiles(x + side * 0.08, y + side * 0.08, side * 0.84, side * 0.84, inner.holds) : []) squares.push(square(a, b, small, "#a6d8f2"));
  }
  svg.replaceChildren(...squares);
  svg.setAttribute("aria-label", `${count(level.holds)} ${level.of}`);
  const text = $("level");
  text.replaceChildren(
    element("h2", `${level.name[0].toUpperCase()}${level.name.slice(1)}: ${count(level.holds)} ${level.of}`),
    element("b", bandwidth(level.bandwidth)), element("p", `for each GPU: ${level.link}. The bars above are on a logarithmic scale.`),
    element("p", `${level.gpus > 1 ? `${count(level.gpus)} GPUs. ` : ""}${level.note}`),
    element("small", `Source: ${level.source}.`),
  );
}
