// Runs before the first paint, so that a dark page does not flash light.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("boathook-theme");
  } catch {
    // In an embedded page, a browser may block access to localStorage.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
