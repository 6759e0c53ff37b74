// What crosses which link: a row for each axis that sends.

const AXIS_NAMES = { tp: "tensor", cp: "context", ep: "expert", dp: "data", pp: "pipeline" };

function drawLinks() {
  const value = (name) => look(state.model, state.place, name);
  const rows = Object.keys(planned.axes).filter((axis) => value(`sent.${axis}`) > 0).map((axis) => {
    const row = element("tr", "", { "data-axis": axis }), leaves = value(`leaves.${axis}`);
    const takes = value(`seconds.${axis}`), shown = value(`time.${axis}`), again = value(`exposed.${axis}`) - shown, hidden = takes - shown - again;
    const words = (part) => (part > 0.005 * takes ? seconds(part) : "");
    row.append(
      element("td", `${axis}, ${AXIS_NAMES[axis]}`),
      element("td", count(value(`group.${axis}`))),
      element("td", leaves ? "network, between nodes" : "NVLink, inside a node", { class: leaves ? "between" : "" }),
      element("td", gigabytes(value(`sent.${axis}`))),
      element("td", words(shown), { class: "shown" }),
      element("td", words(again)),
      element("td", words(hidden)),
    );
    return row;
  });
  if (!rows.length) rows.push(element("tr", "Nothing: one GPU works alone."));
  $("links").tBodies[0].replaceChildren(...rows);
}
