// All layouts at a glance: tensor-parallel ranks across, stages down, each cell the quickest that fits there.

function drawMap() {
  const { model, place } = state, names = Object.keys(model.sliders), [tp, pp] = ["tp", "pp"].map((axis) => names.indexOf(axis));
  const fixed = [...FIXED, "tp", "pp"].map((slider) => names.indexOf(slider)), at = (...moves) => place.map((old, i) => new Map(moves).get(i) ?? old);
  const best = model.sliders.pp.map((_, stages) => model.sliders.tp.map((_, ranks) => quickest(model, at([tp, ranks], [pp, stages]), fixed)));
  const most = Math.max(...best.flat().filter(Boolean).map((one) => look(model, one, "mfu")));
  const table = element("table"), head = element("tr");
  head.append(element("td", "stages ↓, tensor parallel →"), ...model.sliders.tp.map((size) => element("th", count(size))));
  table.append(element("caption", `MFU of the quickest layout that fits, on ${gpus(positionOf(model, place).gpus)}; a click goes there`), head);
  best.forEach((cells, stages) => {
    const row = element("tr");
    row.append(element("th", count(model.sliders.pp[stages])), ...cells.map((one, ranks) => {
      const cell = element("td"), here = place[tp] === ranks && place[pp] === stages, mfu = one && look(model, one, "mfu");
      const button = element("button", one ? percent(mfu) : "none fits", { type: "button", "aria-pressed": here });
      if (one) {
        button.style.background = `color-mix(in oklab, #0072b2 ${Math.round((100 * mfu) / most)}%, var(--paper))`;
        button.style.color = mfu > 0.6 * most ? "#fff" : "var(--ink)";
        button.addEventListener("click", () => show(model, one));
      } else button.disabled = true;
      cell.append(button);
      return cell;
    }));
    table.append(row);
  });
  $("map-of-all").replaceChildren(table);
}
