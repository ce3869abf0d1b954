// Travel through the steps of a run: the slider and the arrow keys load the state at another step in place.

import { show } from "./live.js";

const PAUSE = 120; // milliseconds after the last move
let timer = null;

function slider() {
  return document.querySelector("[data-travel] input[type=range]");
}

async function go(step) {
  const address = new URL(location.href);
  address.searchParams.set("step", step);
  address.searchParams.delete("from");
  history.replaceState(null, "", address);
  const y = scrollY;
  const hadFocus = document.activeElement === slider();
  await show(address.href);
  scrollTo({ top: y });
  if (hadFocus) slider()?.focus({ preventScroll: true });
}

document.addEventListener("input", (event) => {
  if (event.target !== slider()) return;
  const range = event.target;
  const place = document.querySelector("[data-place]");
  if (place) place.textContent = `at step ${range.value} of ${range.max}`;
  clearTimeout(timer);
  timer = setTimeout(() => go(range.value), PAUSE);
});

document.addEventListener("keydown", (event) => {
  const range = slider();
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!range || !by || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  const active = document.activeElement;
  if (active === range || ["INPUT", "TEXTAREA", "SELECT"].includes(active?.tagName)) return; // a slider moves itself
  const step = Math.min(Math.max(Number(range.value) + by, 1), Number(range.max));
  if (step === Number(range.value)) return;
  event.preventDefault();
  range.value = step;
  range.dispatchEvent(new Event("input", { bubbles: true }));
});
