// Keys. None of them performs a decision: `a` moves the focus to Approve, and Enter confirms it. A single key does nothing
// while a field has the focus or a modifier is held. They can be turned off, in the list that `?` shows.

const OFF = "limpet keys off";
const LIST = [
  ["/", "search"],
  ["f", "filter the list; fork a run"],
  ["n", "start a run"],
  ["j k", "next, previous"],
  ["Enter", "open"],
  ["x", "select a run"],
  ["← →", "a step back, a step forward"],
  ["a r e", "approve (Enter confirms), reject, edit"],
  ["p", "pause a run (Enter confirms)"],
  ["y", "copy the link to this page"],
  ["d s", "compare: first difference, swap sides"],
  ["Esc", "leave a field, close a form, clear the selection"],
  ["?", "these keys"],
];

function rows() {
  return [...document.querySelectorAll("main [data-row]")];
}

function current() {
  const active = document.activeElement?.closest?.("[data-row]");
  return active ?? document.querySelector("main [data-row].at");
}

function move(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
  for (const each of all) each.classList.toggle("at", each === next);
  const target = next.matches("a") ? next : (next.querySelector("[data-open], h2 a, header a, button, a") ?? next);
  target.focus();
  next.scrollIntoView({ block: "nearest" });
}

function press(key) {
  const row = current()?.closest("article"); // a request: its keys are about nothing else
  const place = (row && "are".includes(key) ? row : document.querySelector("main")).querySelector(`[data-key="${key}"]`);
  if (!place) return false;
  if (place.tagName === "DETAILS") {
    place.open = true;
    place.querySelector("textarea, input, select")?.focus();
  } else if (place.tagName === "A") {
    place.click();
  } else {
    place.focus(); // a button is not pressed by a single key
  }
  return true;
}

function help() {
  const known = document.querySelector("dialog.keys-list");
  if (known) {
    known.remove();
    return;
  }
  const box = document.createElement("dialog");
  box.className = "dialog keys-list";
  const title = document.createElement("h2");
  title.textContent = "Keys";
  const list = document.createElement("dl");
  list.className = "kv";
  for (const [key, does] of LIST) {
    const name = document.createElement("dt");
    for (const each of key.split(" ")) {
      const cap = document.createElement("kbd");
      cap.textContent = each;
      name.append(cap, " ");
    }
    const words = document.createElement("dd");
    words.textContent = does;
    list.append(name, words);
  }
  const label = document.createElement("label");
  const off = document.createElement("input");
  off.type = "checkbox";
  off.checked = localStorage.getItem(OFF) === "yes";
  off.addEventListener("change", () => localStorage.setItem(OFF, off.checked ? "yes" : "no"));
  label.append(off, " Turn single keys off");
  const close = document.createElement("button");
  close.className = "btn";
  close.textContent = "Close";
  close.addEventListener("click", () => box.remove());
  box.append(title, list, label, close);
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

function escape(active) {
  if (active?.closest("main")) active.blur();
  for (const each of document.querySelectorAll("main .decide-bar details[open], main .head details[open]")) each.open = false;
  for (const each of document.querySelectorAll("main [name^='run.']:checked")) each.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const active = document.activeElement;
  if (event.key === "Escape") {
    escape(active);
    return;
  }
  if (event.key === "?" && !types(active)) {
    event.preventDefault();
    help();
    return;
  }
  if (types(active) || localStorage.getItem(OFF) === "yes" || document.querySelector("dialog[open]")) return;
  const handled = {
    j: () => move(1),
    k: () => move(-1),
    x: () => current()?.querySelector("[name^='run.']")?.click(),
    y: () => navigator.clipboard?.writeText(location.href),
  }[event.key];
  if (handled) {
    event.preventDefault();
    handled();
  } else if (event.key.length === 1 && /[a-z/]/.test(event.key) && press(event.key)) {
    event.preventDefault();
  }
});

function types(active) {
  if (!active) return false;
  if (["TEXTAREA", "SELECT"].includes(active.tagName) || active.isContentEditable) return true;
  return active.tagName === "INPUT" && !["checkbox", "radio", "range", "button"].includes(active.type);
}
