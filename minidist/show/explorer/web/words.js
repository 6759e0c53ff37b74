// Numbers in words: three digits, and a unit that stays on their line.

const three = (value) => (value >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3))));
const gigabytes = (value) => (value >= 1000 ? `${three(value / 1000)}\u00a0TB` : value >= 0.1 || !value ? `${three(value)}\u00a0GB` : `${three(value * 1000)}\u00a0MB`);

function seconds(value) {
  if (value >= 7200) return `${three(value / 3600)}\u00a0h`;
  if (value >= 600) return `${three(value / 60)}\u00a0min`;
  if (value >= 1 || !value) return `${three(value)}\u00a0s`;
  return value >= 0.001 ? `${three(value * 1000)}\u00a0ms` : `${three(value * 1e6)}\u00a0µs`;
}

const days = (value, unit = value) => (unit >= 1000 ? `${three(value / 365)}\u00a0years` : `${three(value)}\u00a0days`);
const between = (low, high) => `${days(low, high).split("\u00a0")[0]} to ${days(high)}`; // in the unit of the longer time

const percent = (share) => (share < 0.0005 && share > 0 ? "<0.1%" : `${(100 * share).toFixed(1)}%`);
const count = (value) => value.toLocaleString("en");
const gpus = (value) => `${count(value)} GPU${value === 1 ? "" : "s"}`;
const named = (slider, value) => (slider === "gpus" || slider === "sequence" ? `${planned.sliders[slider]} ${count(value)}` : `${planned.sliders[slider]} ${value}`);

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function inkOn(colour) { // black or white, whichever has more contrast; "faint" is the theme's
  if (!colour.startsWith("#")) return "var(--ink)";
  const [red, green, blue] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) ** 2 > 0.0525 ? "#000" : "#fff";
}

const painted = (colour) => (colour.startsWith("#") ? colour : `var(--${colour})`);
