// Keeps a page up to date: when a run changes, the page is fetched again and its content replaced. Without this script,
// the page is the same, and is reloaded by hand.

const WAIT = 300; // milliseconds in which several changes are one
const live = document.querySelector(".live");
const stream = document.body.dataset.stream;
let source = null;
let timer = null;

// Content must not change under a person who types, selects or has opened something.
function isBusy() {
  const active = document.activeElement;
  const types = active && ["INPUT", "TEXTAREA", "SELECT"].includes(active.tagName);
  return types || document.querySelector("main details[open]") !== null || String(getSelection()) !== "";
}

function say(word, isOff) {
  live.hidden = false;
  live.textContent = word;
  live.classList.toggle("off", isOff);
}

async function refresh() {
  timer = null;
  if (isBusy()) {
    say("Changed", false);
    timer = setTimeout(refresh, 1000);
    return;
  }
  try {
    const reply = await fetch(location.href, { headers: { accept: "text/html" } });
    if (reply.redirected) {
      location.assign(reply.url); // the session has ended
      return;
    }
    if (!reply.ok) {
      say("Away", true);
      return;
    }
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    document.querySelector("main").replaceWith(page.querySelector("main"));
    document.querySelector(".nav").replaceWith(page.querySelector(".nav"));
    say("Live", false);
  } catch {
    say("Away", true);
  }
}

function changed() {
  timer ??= setTimeout(refresh, WAIT);
}

function connect() {
  source = new EventSource(stream);
  source.onopen = () => {
    say("Live", false);
    changed(); // what happened while there was no connection
  };
  source.onmessage = changed;
  source.onerror = () => {
    say("Away", true);
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (source === null) {
    connect();
  }
});
if (!document.hidden) connect();
