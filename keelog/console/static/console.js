// The start of all scripts of a page. Every page works without them, too: in UTC, and at rest.
import { start as startCopies } from "./copy.js";
import { keep, kept } from "./kept.js";
import { start as startKeys } from "./keys.js";
import { pause, start as startRefresh } from "./refresh.js";
import { switchZone, writeTimes } from "./times.js";

const THEMES = ["", "light", "dark"];

function switchTheme() {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(kept("theme", "")) + 1) % THEMES.length];
  keep("theme", next);
  if (next) root.dataset.theme = next; else delete root.dataset.theme;
  const said = document.getElementById("said");
  if (said) said.textContent = next ? `${next} colours` : "colours of the system";
}

// The key comes behind #, which no browser sends. It leaves the address before anything else.
function unlock() {
  const field = document.querySelector("input[data-key-of-address]");
  const key = location.hash.slice(1);
  if (!field || !key) return;
  history.replaceState(null, "", location.pathname + location.search);
  field.value = key;
  field.form.requestSubmit();
}

document.addEventListener("click", (event) => {
  const act = event.target.closest("[data-do]")?.dataset.do;
  if (act === "zone") switchZone();
  if (act === "theme") switchTheme();
  if (act === "pause") pause();
});
// A choice in a list counts at once.
document.addEventListener("change", (event) => {
  if (event.target.matches("select[data-at-once]")) event.target.form.requestSubmit();
});
writeTimes(document);
startCopies();
startKeys();
startRefresh();
unlock();
