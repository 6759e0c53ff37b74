"use strict";
// The scenes come as JSON, compressed by gzip and written in base64. tables.py has written each different shape once.

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const animation = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  const restore = (scene) => {
    const [kinds, numbers, firsts, lasts] = scene.shapes;
    scene.shapes = kinds.map((kind, i) => [kind, firsts[i], lasts[i], ...animation.tables[kind].map((column) => column[numbers[i]])]);
    scene.variants.forEach(restore);
  };
  animation.scenes.forEach(restore);
  return animation;
}
