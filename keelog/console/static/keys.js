// The keyboard: one letter, or g and a letter. Not in fields, and not with other keys held.
import { copyText } from "./copy.js";
import { pause, refresh } from "./refresh.js";
import { switchZone } from "./times.js";

const PAGES = "otgdwsn";
let afterG = 0;

function rows() { return [...document.querySelectorAll("[data-row] a[data-open]")]; }

function step(by) {
  const all = rows();
  if (!all.length) {
    document.querySelector(by > 0 ? "a[rel=next]" : "a[rel=prev]")?.click();
    return;
  }
  const at = all.indexOf(document.activeElement);
  const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

const ACTS = {
  "/": () => document.getElementById("find")?.focus(),
  j: () => step(1),
  k: () => step(-1),
  c: () => copyText(location.href, document.getElementById("said")),
  p: pause,
  r: refresh,
  u: switchZone,
  "?": () => document.querySelector("a[data-help]")?.click(),
};

export function start() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (afterG && Date.now() - afterG < 1500 && PAGES.includes(event.key)) {
      afterG = 0;
      document.querySelector(`nav a[data-key="${event.key}"]`)?.click();
      event.preventDefault();
      return;
    }
    afterG = event.key === "g" ? Date.now() : 0;
    const act = ACTS[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  // A row is opened by a click anywhere in it, unless text is being selected.
  document.addEventListener("click", (event) => {
    const row = event.target.closest("[data-row]");
    if (!row || event.target.closest("a, button, input, label, summary")) return;
    if (String(getSelection())) return;
    row.querySelector("a[data-open]")?.click();
  });
}
