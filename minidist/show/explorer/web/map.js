// All layouts at a glance: tensor-parallel ranks across, stages down, each cell the quickest that fits there.

const mixed = (colour, ground, share) => `#${[1, 3, 5].map((i) => [colour, ground].map((one) => parseInt(one.slice(i, i + 2), 16)))
  .map(([a, b]) => Math.round(b + share * (a - b)).toString(16).padStart(2, "0")).join("")}`;

function drawMap() {
  const { model, place } = state, names = Object.keys(model.sliders), [tp, pp] = ["tp", "pp"].map((axis) => names.indexOf(axis));
  const fixed = [...FIXED, "tp", "pp"].map((slider) => names.indexOf(slider)), at = (...moves) => place.map((old, i) => new Map(moves).get(i) ?? old);
  const best = model.sliders.pp.map((_, stages) => model.sliders.tp.map((_, ranks) => quickest(model, at([tp, ranks], [pp, stages]), fixed)));
  const most = Math.max(...best.flat().filter(Boolean).map((one) => look(model, one, "mfu")));
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();
  const table = element("table"), head = element("tr");
  head.append(element("td", "stages ↓, tensor parallel →"), ...model.sliders.tp.map((size) => element("th", count(size))));
  table.append(element("caption", `MFU of the quickest layout that fits, on ${gpus(positionOf(model, place).gpus)}; click to go there`), head);
  best.forEach((cells, stages) => {
    const row = element("tr");
    row.append(element("th", count(model.sliders.pp[stages])), ...cells.map((one, ranks) => {
      const cell = element("td"), here = place[tp] === ranks && place[pp] === stages, mfu = one && look(model, one, "mfu");
      const none = !one && isLegal(model, at([tp, ranks], [pp, stages]), fixed) ? "none fits" : "none is legal";
      const button = element("button", one ? percent(mfu) : none, { type: "button", "aria-pressed": here });
      if (one) {
        const fill = mixed("#0072b2", paper, mfu / most);
        button.style.background = fill;
        button.style.color = inkOn(fill);
        button.addEventListener("click", () => show(model, one));
      } else button.disabled = true;
      cell.append(button);
      return cell;
    }));
    table.append(row);
  });
  $("map-of-all").replaceChildren(table);
}
