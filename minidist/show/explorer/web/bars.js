// Memory beside the limit of the GPU, and a step by its parts: drawn to scale from the numbers of one place.

const numbersOf = (kind) => planned.parts[kind].map(([part, name, short, colour]) => ({ part, name, short, colour, value: look(state.model, state.place, `${kind}.${part}`) })).filter((one) => one.value > 0);

function drawBar(kind, parts, scale, total, write) {
  const bar = $(kind).querySelector(".bar"), list = $(kind).querySelector(".parts");
  const largest = parts.reduce((most, one) => (one.value > most.value ? one : most));
  bar.replaceChildren(...parts.map((one) => {
    const cell = element("i", one.short, { title: `${one.name}: ${write(one.value)}`, "data-part": one.part });
    cell.style.cssText = `width:${100 * one.value / scale}%;background:${painted(one.colour)};color:${inkOn(one.colour)}`;
    return cell;
  }));
  for (const cell of bar.children) if (cell.scrollWidth > cell.clientWidth) cell.textContent = ""; // no room for its name
  list.replaceChildren(...parts.map((one) => {
    const row = element("div", "", { "data-part": one.part, ...(one === largest && { class: "largest" }) }), mark = element("i");
    mark.style.background = painted(one.colour);
    row.append(mark, element("dt", one.name), element("dd", write(one.value)), element("dd", percent(one.value / total)));
    return row;
  }));
  return bar;
}

function drawMemory() {
  const total = look(state.model, state.place, "memory"), limit = planned.gpu.memory, fits = look(state.model, state.place, "fits");
  const scale = Math.max(total, limit * 1.25);
  const bar = drawBar("memory", numbersOf("memory"), scale, total, gigabytes);
  bar.classList.toggle("over", !fits);
  if (!fits) {
    const excess = element("i", "", { class: "excess" });
    excess.style.cssText = `left:${100 * limit / scale}%;width:${100 * (total - limit) / scale}%`;
    bar.append(excess);
  }
  const line = element("i", "", { class: limit / scale > 0.6 ? "limit left" : "limit" });
  line.style.left = `${100 * limit / scale}%`;
  line.append(element("b", `${three(limit)} GB, the limit`));
  bar.append(line);
  $("memory-total").textContent = gigabytes(total);
}

function drawTime() {
  const step = look(state.model, state.place, "step");
  drawBar("time", numbersOf("time"), step, step, seconds);
  $("time-total").textContent = seconds(step);
}

function factsOf({ model, place }) {
  const value = (name) => look(model, place, name), tokens = three(planned.gpu.tokens / 1e12);
  return {
    "memory": gigabytes(value("memory")),
    "step": seconds(value("step")),
    "MFU": percent(value("mfu")),
    "tokens/s": count(value("tokens_per_second")),
    [`${tokens}T tokens, as planned`]: days(value("days")),
    ...(state.price && { [`price of ${tokens}T tokens`]: count(Math.round(value("days") * 24 * positionOf(model, place).gpus * state.price)) }),
    "dp": count(value("dp")),
    "micro-batches of a rank": count(value("micro_batches")),
    "stages on a rank": count(value("virtual")),
  };
}

function drawFacts() { // of this layout and, below, of the pinned one
  const pinned = state.pinned && factsOf(state.pinned), facts = Object.entries(factsOf(state));
  $("facts").replaceChildren(...facts.slice(pinned ? 0 : 2).map(([name, text]) => { // the first two stand above
    const fact = element("div", "", { "data-fact": name });
    fact.append(element("dt", name), element("dd", text));
    if (pinned) fact.append(element("small", `pinned: ${pinned[name]}`));
    return fact;
  }));
}
