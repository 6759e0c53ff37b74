// Where each rank sits. Ranks are numbered in the order tp, cp, dp, pp; a rank's coordinate on an axis is how many
// strides of the axis it has passed, and the strides were planned.

const map = { by: "tp", rank: 0, cell: 1, boxes: [] };
const ORDER = ["tp", "cp", "dp", "pp"];

function meshOf() { // axis -> { size, stride }
  const value = (name) => look(state.model, state.place, name), at = (slider) => state.model.sliders[slider][state.place[Object.keys(state.model.sliders).indexOf(slider)]];
  const sizes = { tp: at("tp"), cp: at("cp"), dp: value("dp"), pp: at("pp") };
  let stride = 1;
  const mesh = Object.fromEntries(ORDER.map((axis) => {
    const found = [axis, { size: sizes[axis], stride }];
    stride *= sizes[axis];
    return found;
  }));
  return { mesh, world: stride };
}

const coordinate = (rank, { size, stride }) => Math.floor(rank / stride) % size;
const groupOf = (rank, axis) => Array.from({ length: axis.size }, (_, i) => rank + (i - coordinate(rank, axis)) * axis.stride);

function arrange() { // columns and rows of racks in each pod, and the side of a GPU, so that all of it is as large as it can be
  const { node, rack, pod } = planned.places, canvas = $("map"), { world } = meshOf();
  const racks = Math.ceil(Math.min(world, pod) / rack), pods = Math.ceil(world / pod);
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  let best = { cell: 0 };
  for (let across = 1; across <= pods; across++) {
    for (let columns = 1; columns <= racks; columns++) {
      const wide = across * (columns * 4.5 + 1), high = Math.ceil(pods / across) * (Math.ceil(racks / columns) * (world > node ? 4.9 : 2.4) + 1);
      const cell = Math.min(width / wide, height / high, 56);
      if (cell > best.cell) best = { cell, columns, across, podWidth: columns * 4.5 + 1, podHeight: Math.ceil(racks / columns) * 4.9 + 1 };
    }
  }
  return best;
}

function cornerOf(rank, { cell, columns, across, podWidth, podHeight }) { // in pixels
  const { node, rack, pod } = planned.places;
  const inPod = rank % pod, podNumber = Math.floor(rank / pod), rackNumber = Math.floor(inPod / rack), inRack = inPod % rack, inNode = inRack % node;
  const x = (podNumber % across) * podWidth + (rackNumber % columns) * 4.5 + (inNode % 4);
  const y = Math.floor(podNumber / across) * podHeight + Math.floor(rackNumber / columns) * 4.9 + Math.floor(inRack / node) * 2.2 + Math.floor(inNode / 4);
  return [x * cell, y * cell];
}

const isPlaced = () => !$("places").hidden && !reasonAt(state.model, state.place); // an illegal layout has no ranks

function drawPlaces() {
  if (!isPlaced()) return;
  const canvas = $("map"), { mesh, world } = meshOf(), scale = window.devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = canvas.clientHeight * scale;
  const pen = canvas.getContext("2d"), look = getComputedStyle(document.documentElement);
  pen.scale(scale, scale);
  map.rank = Math.min(map.rank, world - 1);
  map.places = arrange();
  const { cell } = map.places, gap = cell > 6 ? 1.5 : cell > 3 ? 0.5 : 0;
  const colour = planned.axes[map.by], group = new Set(groupOf(map.rank, mesh[map.by]));
  for (let rank = 0; rank < world; rank++) {
    const [x, y] = cornerOf(rank, map.places), { size } = mesh[map.by];
    pen.globalAlpha = size === 1 ? 1 : 0.15 + 0.85 * coordinate(rank, mesh[map.by]) / (size - 1);
    pen.fillStyle = colour;
    pen.fillRect(x, y, cell - gap, cell - gap);
  }
  pen.globalAlpha = 1;
  pen.lineWidth = Math.max(2, cell / 10);
  pen.strokeStyle = look.getPropertyValue("--ink");
  for (const rank of group) {
    const [x, y] = cornerOf(rank, map.places);
    pen.strokeRect(x, y, cell - gap, cell - gap);
  }
  pen.fillStyle = look.getPropertyValue("--ink");
  const [x, y] = cornerOf(map.rank, map.places);
  pen.fillRect(x - 1, y - 1, cell, cell);
  tellRank(mesh, world);
}

function tellRank(mesh, world) {
  const { node, rack, pod, source } = planned.places, rank = map.rank, words = [];
  for (const axis of ORDER) {
    const one = mesh[axis];
    if (one.size === 1) continue;
    const nodes = new Set(groupOf(rank, one).map((other) => Math.floor(other / node))).size;
    const apart = one.stride === 1 ? "neighbours" : `${count(one.stride)} apart`;
    words.push(`${axis} ${coordinate(rank, one)} of ${one.size} (${apart}, ${nodes === 1 ? "one node" : `${count(nodes)} nodes`})`);
  }
  const where = `Rank ${count(rank)} of ${count(world)}: node ${count(Math.floor(rank / node))}, rack ${count(Math.floor(rank / rack))}, pod ${Math.floor(rank / pod)}. `;
  const [legend, note] = [element("span", `${where}${words.length ? `${words.join("; ")}. ` : ""}Outlined: its ${map.by} group; pale to full: ${map.by} 0 to ${mesh[map.by].size - 1}.`), element("small", ` A block of 8 is a node, two are a rack, ${count(pod / rack)} racks a pod, as in ${source}.`)];
  $("rank").replaceChildren(legend, note);
}

function buildPlaces() {
  ORDER.forEach((axis) => {
    const button = element("button", axis, { role: "radio", "aria-checked": axis === map.by });
    button.style.borderBottom = `.3rem solid ${planned.axes[axis]}`;
    button.addEventListener("click", () => {
      map.by = axis;
      for (const other of $("colouring").querySelectorAll("button")) other.setAttribute("aria-checked", other === button);
      drawPlaces();
    });
    $("colouring").append(...(axis === ORDER[0] ? [element("span", "colour by")] : []), button);
  });
  const canvas = $("map");
  for (const kind of ["mousemove", "click"]) canvas.addEventListener(kind, (event) => {
    if (!isPlaced()) return;
    const { world } = meshOf(), { cell } = map.places;
    for (let rank = 0; rank < world; rank++) {
      const [x, y] = cornerOf(rank, map.places);
      if (event.offsetX >= x && event.offsetX < x + cell && event.offsetY >= y && event.offsetY < y + cell && rank !== map.rank) {
        map.rank = rank;
        drawPlaces();
        return;
      }
    }
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: planned.places.node, ArrowUp: -planned.places.node }[event.key];
    if (!by) return;
    event.preventDefault();
    map.rank = Math.max(0, Math.min(meshOf().world - 1, map.rank + by));
    drawPlaces();
  });
  new ResizeObserver(() => state.model && draw()).observe(canvas);
}
