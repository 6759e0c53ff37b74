"use strict";
// Looks up what was planned. packing.py left out of each column the sliders that its numbers do not depend on, and of
// numbers that others foretell all but a correction.

const $ = (id) => document.getElementById(id);

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const indexOf = (strides, place) => strides.reduce((index, stride, i) => index + stride * place[i], 0);

// ``place`` is the number of each slider's position, in the order of the model's sliders.
function look(model, place, name) {
  const written = (column) => {
    const [strides, values] = model.numbers[model.columns[column]];
    return values[indexOf(strides, place)];
  };
  if (!model.foretold[name]) return written(name);
  const [others, power, digits] = model.foretold[name];
  const foretold = written(`${name} factor`) * others.reduce((sum, other) => sum + look(model, place, other), 0) ** power;
  const unit = 10 ** (Math.floor(Math.log10(foretold) - 1e-4) - digits + 1);
  return Number((foretold + written(name) * unit).toPrecision(digits));
}

function reasonAt(model, place) { // why this place is illegal; "" if it is legal
  const [strides, values] = model.reasons;
  return model.texts[values[indexOf(strides, place)]];
}

function* placesOf(sizes) { // every place
  const place = sizes.map(() => 0);
  for (;;) {
    yield place;
    let slider = sizes.length;
    while (slider-- && ++place[slider] === sizes[slider]) place[slider] = 0;
    if (slider < 0) return;
  }
}

// The legal place with the fewest sliders moved, ``kept`` last of all; ``among`` may demand more.
function nearest(model, place, kept = -1) {
  let best = null, least = Infinity;
  for (const other of placesOf(model.sizes)) {
    let moved = 0;
    for (let i = 0; i < place.length && moved < least; i++) {
      if (other[i] !== place[i]) moved += 100 + Math.abs(other[i] - place[i]) + (i === kept ? 1000 : 0);
    }
    if (moved < least && !reasonAt(model, other)) [best, least] = [[...other], moved];
  }
  return best;
}

// Whether a place is legal where the sliders ``fixed`` stay as they are.
function isLegal(model, place, fixed) {
  for (const other of placesOf(model.sizes)) if (fixed.every((i) => other[i] === place[i]) && !reasonAt(model, other)) return true;
  return false;
}

// Of the places that fit, where the sliders ``fixed`` stay as they are, the simplest within 1% of the quickest: the one
// that moves the fewest sliders from their first position; null if none fits.
function quickest(model, place, fixed) {
  const fitting = [];
  for (const other of placesOf(model.sizes)) {
    if (fixed.some((i) => other[i] !== place[i]) || reasonAt(model, other) || !look(model, other, "fits")) continue;
    fitting.push({ place: [...other], step: look(model, other, "step"), moved: other.filter(Boolean).length });
  }
  const least = Math.min(...fitting.map((one) => one.step)) * 1.01;
  const close = fitting.filter((one) => one.step <= least).sort((a, b) => a.moved - b.moved || a.step - b.step);
  return close[0]?.place ?? null;
}
