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

function drawFacts() {
  const value = (name) => look(state.model, state.place, name);
  const facts = {
    "MFU": percent(value("mfu")),
    "tokens/s": count(value("tokens_per_second")),
    [`${three(planned.gpu.tokens / 1e12)}T tokens take`]: days(value("days")),
    "dp": count(value("dp")),
    "micro-batches of a rank": count(value("micro_batches")),
    "stages on a rank": count(value("virtual")),
  };
  $("facts").replaceChildren(...Object.entries(facts).map(([name, text]) => {
    const fact = element("div", "", { "data-fact": name });
    fact.append(element("dt", name), element("dd", text));
    return fact;
  }));
}
