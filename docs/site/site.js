// Players follow the page's switch between light and dark. Where they stand alone they follow the system.
const system = matchMedia("(prefers-color-scheme: dark)");

function paint(player) {
  const chosen = document.body.dataset.theme, dark = chosen === "dark" || (chosen !== "light" && system.matches);
  player.contentDocument?.documentElement.classList.toggle("dark", dark); // none to be had from another folder's file
}

document.addEventListener("load", ({ target }) => target.tagName === "IFRAME" && paint(target), true);
new MutationObserver(() => document.querySelectorAll("iframe").forEach(paint))
  .observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
