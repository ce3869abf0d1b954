// What all pages do in a browser with scripts. Everything works without them, too.

import "./live.js";
import "./keys.js";
import "./travel.js";
import "./select.js";

// Times in the viewer's zone, where the page has only UTC: in titles, and where a time of day is shown.
export function localise(root) {
  for (const each of root.querySelectorAll("time[datetime][title]")) {
    const time = new Date(each.getAttribute("datetime"));
    if (!Number.isNaN(time.getTime())) {
      each.title = time.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
      if ("clock" in each.dataset) each.textContent = time.toLocaleTimeString(undefined, { hour12: false });
    }
  }
  if (navigator.clipboard) {
    for (const each of root.querySelectorAll("[data-copy]")) each.hidden = false;
  }
}

// Copy the nearest command or value.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const place = button.closest(".cmd, .sect, .body");
  const text = place.querySelector("code, pre");
  await navigator.clipboard.writeText(text.textContent);
  const label = button.lastChild;
  const before = label.textContent;
  label.textContent = "Copied";
  setTimeout(() => (label.textContent = before), 1500);
});

// A decision is sent once: its buttons are off until the answer is there.
document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-once]")) return;
  setTimeout(() => {
    for (const each of event.target.querySelectorAll("button")) each.disabled = true;
  });
});
addEventListener("pageshow", () => {
  for (const each of document.querySelectorAll("[data-once] button")) each.disabled = false;
});

document.addEventListener("limpet:shown", (event) => localise(event.detail));
localise(document);
