// Keeps a page up to date: when a run or a record changes, the page is fetched again and its content replaced. Without
// this script, the page is the same, and is reloaded by hand. One stream serves all tabs of a browser, while one of them
// is visible.

const WAIT = 300; // milliseconds in which several changes are one
const SLOW = 300; // milliseconds after which a page that a person asked for is shown as loading
const RETRY = 2000; // milliseconds after which a page that could not be fetched is tried again
const live = document.querySelector(".live");
const stream = document.body.dataset.stream;
const isStill = "still" in document.body.dataset;
const others = new BroadcastChannel(`limpet ${stream}`);
let timer = null;
let awaySince = null;
let release = null;
let busySince = 0;
let asked = 0; // pages that a person asked for so far: a reply from before the last one is too old to be shown
let typed = false; // whether a form has something that would be lost

document.addEventListener("input", (event) => {
  if (event.target.closest("main form[method=post]")) typed = true;
});

// Content must not change under a person who types, selects or has opened something.
function isBusy() {
  const active = document.activeElement;
  const types = active?.closest("main") && ["INPUT", "TEXTAREA", "SELECT", "BUTTON", "SUMMARY"].includes(active.tagName);
  const opened = document.querySelector("main details[open]:not([data-open])") !== null;
  const selected = document.querySelector("main [name^='run.']:checked") !== null;
  return typed || types || opened || selected || String(getSelection()) !== "" || scrollY > 400;
}

function say(word, isOff) {
  if (live.textContent === word && !live.hidden) return;
  live.hidden = false;
  live.textContent = word;
  live.classList.toggle("off", isOff);
}

function banner(kind, icon, strong, text, action) {
  document.querySelector(".banner[data-live]")?.remove();
  if (!kind) return;
  const box = document.createElement("div");
  box.className = `banner ${kind}`;
  box.dataset.live = "";
  box.setAttribute("role", kind === "bad" ? "alert" : "status");
  const symbol = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  symbol.setAttribute("class", "i");
  symbol.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${icon}`);
  symbol.append(use);
  const words = document.createElement("p");
  const first = document.createElement("strong");
  first.textContent = strong;
  words.append(first, ` ${text}`);
  box.append(symbol, words);
  if (action) {
    const actions = document.createElement("div");
    actions.className = "actions";
    const button = document.createElement("button");
    button.className = "btn";
    button.type = "button";
    button.textContent = action;
    button.addEventListener("click", () => refresh(true));
    actions.append(button);
    box.append(actions);
  }
  document.querySelector("main").prepend(box);
}

function away() {
  if (isStill) return;
  say("Away", true);
  if (awaySince === null) {
    awaySince = new Date();
    const when = awaySince.toLocaleTimeString();
    banner("bad", "plug", `The server or its store does not answer since ${when}.`, "You see the state of that moment. It is tried again by itself; nothing you did is lost.", "Try now");
    for (const each of document.querySelectorAll("main form[method=post] button")) each.disabled = true;
  }
  timer ??= setTimeout(() => refresh(false), RETRY);
}

// Return a function that finds the same element in another version of the page: by its id, or the link of the same row.
function placeOf(main, active) {
  if (!active || !main.contains(active)) return () => null;
  if (active.id) return (page) => page.querySelector(`#${CSS.escape(active.id)}`);
  const href = active.getAttribute("href");
  return (page) => (href ? page.querySelector(`a[href="${CSS.escape(href)}"]`) : null);
}

// Show a page without leaving this one, unless a person has begun to work on it. Returns whether it could be fetched.
export async function show(address, { isAsked = true } = {}) {
  const mine = isAsked ? ++asked : asked;
  const slow = isAsked ? setTimeout(() => document.querySelector("main").setAttribute("aria-busy", "true"), SLOW) : 0;
  const reply = await fetch(address, { headers: { accept: "text/html" } }).finally(() => {
    clearTimeout(slow);
    document.querySelector("main").removeAttribute("aria-busy");
  });
  if (reply.redirected && new URL(reply.url).pathname.endsWith("/login")) {
    location.assign(reply.url); // the session has ended
    return true;
  }
  if (reply.status >= 500) return false;
  const text = await reply.text();
  if (mine !== asked) return true;
  const page = new DOMParser().parseFromString(text, "text/html");
  const found = page.querySelector("main");
  if (!found) return false;
  if (!isAsked && isBusy()) {
    changed();
    return true;
  }
  typed = false;
  const current = document.querySelector("main");
  const focus = placeOf(current, document.activeElement);
  current.replaceWith(found);
  const nav = page.querySelector(".nav");
  if (nav) document.querySelector(".nav")?.replaceWith(nav);
  document.title = page.title;
  focus(found)?.focus({ preventScroll: true });
  document.dispatchEvent(new CustomEvent("limpet:shown", { detail: found }));
  return true;
}

async function refresh(isAsked) {
  clearTimeout(timer);
  timer = null;
  if (isStill) return; // this page is the reply to a form: another request would not give it again
  if (!isAsked && awaySince === null && isBusy()) {
    if (!busySince) busySince = Date.now();
    say("Changed", false);
    if (Date.now() - busySince > 3000 && !document.querySelector(".banner[data-live]")) {
      banner("run", "run", "Something has changed.", "The page stays as it is while you work on it.", "Show it");
    }
    timer = setTimeout(() => refresh(false), 1000);
    return;
  }
  busySince = 0;
  try {
    if (!(await show(location.href, { isAsked: isAsked || awaySince !== null }))) {
      away();
      return;
    }
    say("Live", false);
    if (awaySince !== null) {
      awaySince = null;
      banner("ok", "done", "Live again.", "You see the state of now.");
    }
  } catch {
    away();
  }
}

function changed() {
  timer ??= setTimeout(() => refresh(false), WAIT);
}

// Shared records are only on pages of their own; a run that patches one changes, too.
function concerns(what) {
  return what === "changed" || (what === "record" && document.body.dataset.here === "records");
}

// Only the tab that holds the lock has a stream; it tells the others.
function lead() {
  return new Promise((done) => {
    const source = new EventSource(stream);
    source.onopen = () => {
      others.postMessage("open");
      opened();
    };
    source.onmessage = ({ data }) => {
      const what = "record" in JSON.parse(data) ? "record" : "changed";
      others.postMessage(what);
      if (concerns(what)) changed();
    };
    source.onerror = () => {
      others.postMessage("away");
      away();
      if (source.readyState === EventSource.CLOSED) stop();
    };
    function stop() {
      release = null;
      source.close();
      setTimeout(done, document.hidden ? 0 : RETRY);
    }
    release = stop;
  });
}

function opened() {
  if (awaySince === null) say("Live", false);
  changed(); // what happened while there was no connection
}

others.onmessage = ({ data }) => {
  if (document.hidden) return;
  if (data === "open") opened();
  if (data === "away") away();
  if (concerns(data)) changed();
};

let waiting = false;
async function follow() {
  if (waiting) return;
  waiting = true;
  while (!document.hidden) {
    if (navigator.locks) await navigator.locks.request(`limpet ${stream}`, () => (document.hidden ? null : lead()));
    else await lead();
  }
  waiting = false;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    release?.();
  } else {
    changed();
    follow();
  }
});
if (!document.hidden) {
  changed(); // what happened since the page was made, and before this tab listens
  follow();
}
