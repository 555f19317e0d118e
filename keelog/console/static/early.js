// Runs before the first paint: the chosen colours, and that there are scripts at all.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("keelog-theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch { /* storage may be forbidden: then the system's colours count */ }
})();
