// Draws shapes: scene.py documents their parts. The picture is a grid of characters.
const WIDTH = 72, CHARACTER = 10, LINE = 20, MARGIN = 0.3; // characters, pixels, pixels, characters
const $ = (id) => document.getElementById(id);

function colour(name) {
  return name === null ? "none" : name.startsWith("#") ? name : `var(--${name})`;
}

function inkOn(name) { // black, white or a theme colour, whichever is readable on this one
  if (name === null || name === "paper" || name === "faint") return "var(--ink)";
  if (!name.startsWith("#")) return "var(--paper)";
  const light = [1, 3, 5].map((i) => parseInt(name.slice(i, i + 2), 16) / 255);
  const [r, g, b] = light.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05) ** 2 > 1.05 * 0.05 ? "#000" : "#fff"; // contrast as in WCAG
}

function svg(name, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

const draw = {
  box([x, y, w, h, fill, text, outline]) {
    const place = { x: x * CHARACTER, y: y * LINE, width: w * CHARACTER, height: h * LINE };
    const thick = outline === null || outline === "faint" ? 1 : 3;
    const found = [svg("rect", { ...place, style: `fill:${colour(fill)};stroke:${colour(outline)};stroke-width:${thick}` })];
    const fits = text.slice(0, Math.floor(w + 0.5));
    if (fits) {
      const middle = { x: (x + w / 2) * CHARACTER, y: (y + h / 2) * LINE, "text-anchor": "middle" };
      const room = w - MARGIN;
      const narrowed = fits.length > room ? { textLength: room * CHARACTER, lengthAdjust: "spacingAndGlyphs" } : {};
      found.push(svg("text", { ...middle, ...narrowed, style: `fill:${inkOn(fill)}` }, fits));
    }
    return found;
  },
  label([x, y, text, name, anchor]) {
    // mixed with the ink, so that blue is readable on black and yellow on white
    const fill = name === "faint" ? "var(--quiet)" : `color-mix(in srgb, ${colour(name)} 72%, var(--ink))`;
    return [svg("text", { x: x * CHARACTER, y: y * LINE, "text-anchor": anchor, style: `fill:${fill}` }, text)];
  },
  arrow([x, y, toX, toY, name, bend]) {
    const [x1, y1, x2, y2] = [x * CHARACTER, y * LINE, toX * CHARACTER, toY * LINE];
    const [cx, cy] = [(x1 + x2) / 2 + 2 * bend * CHARACTER, (y1 + y2) / 2];
    const angle = Math.atan2(y2 - cy, x2 - cx);
    const corner = (turn) => `${x2 - 11 * Math.cos(angle + turn)},${y2 - 11 * Math.sin(angle + turn)}`;
    const line = { d: `M${x1},${y1}Q${cx},${cy} ${x2},${y2}`, pathLength: 1 };
    const halo = "stroke:var(--paper);stroke-width:"; // so that it can be told from what is below
    return [
      svg("path", { ...line, class: "halo", style: `fill:none;${halo}7` }),
      svg("path", { ...line, style: `fill:none;stroke:${colour(name)};stroke-width:3` }),
      svg("polygon", { points: `${x2},${y2} ${corner(0.45)} ${corner(-0.45)}`, style: `fill:${colour(name)};${halo}4;paint-order:stroke` }),
    ];
  },
  curve([points, name, width]) {
    const path = points.map(([x, y]) => `${x * CHARACTER},${y * LINE}`).join(" ");
    return [svg("polyline", { points: path, style: `fill:none;stroke:${colour(name)};stroke-width:${width}` })];
  },
};
