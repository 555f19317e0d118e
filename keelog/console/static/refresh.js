// Asks for the page anew while its tab is visible, and merges what has changed: focus, selection,
// open details and ticked boxes stay. Where no answer comes, the values stay and are marked.
import { writeTimes } from "./times.js";

const TRIED_S = 10;
const policy = window.trustedTypes?.createPolicy("keelog", { createHTML: (text) => text });
let paused = false;
let timer = 0;
let answered = Date.now();
let running = null;

const merging = {
  morphStyle: "outerHTML",
  ignoreActiveValue: true,
  callbacks: {
    beforeAttributeUpdated: (name) => name !== "open" && name !== "checked",
  },
};

function main() { return document.getElementById("main"); }

function interval() { return Number(main()?.dataset.refresh ?? 0) * 1000; }

function merge(text) {
  const found = new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
  writeTimes(found);
  for (const id of ["strip", "main"]) {
    const old = document.getElementById(id);
    const fresh = found.getElementById(id);
    if (old && fresh) window.Idiomorph.morph(old, fresh, merging);
  }
}

function mark(isStale) {
  document.documentElement.classList.toggle("stale", isStale);
  const note = document.getElementById("stale");
  if (!note) return;
  note.hidden = !isStale;
  const at = note.querySelector("time");
  if (isStale && at && Number(at.dataset.ms) !== answered) {
    at.dataset.ms = String(answered);
    at.dateTime = new Date(answered).toISOString();
    writeTimes(note);
  }
}

export async function refresh() {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  const late = setTimeout(() => mine.abort(), TRIED_S * 1000);
  document.documentElement.classList.add("asks");
  try {
    const answer = await fetch(location.href, {
      headers: { "Keelog-Part": "1", Accept: "text/html" }, signal: mine.signal,
      redirect: "error", cache: "no-store", credentials: "same-origin",
    });
    const text = await answer.text();
    if (answer.status === 401) { location.reload(); return; }
    if (answer.ok || answer.status === 404) {
      merge(text);
      answered = Date.now();
      mark(false);
    } else {
      mark(true);
    }
  } catch {
    if (running === mine) mark(true);
  } finally {
    clearTimeout(late);
    document.documentElement.classList.remove("asks");
    if (running === mine) { running = null; plan(); }
  }
}

function plan() {
  clearTimeout(timer);
  if (!paused && !document.hidden && interval() > 0) timer = setTimeout(refresh, interval());
}

export function pause() {
  paused = !paused;
  document.documentElement.classList.toggle("paused", paused);
  for (const one of document.querySelectorAll("[data-pause]")) {
    one.setAttribute("aria-pressed", String(paused));
  }
  if (paused) clearTimeout(timer); else refresh();
}

export function start() {
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else if (!paused && interval() > 0) refresh();
  });
  plan();
}
