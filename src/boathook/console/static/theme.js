// Before anything is shown, so that a dark page never flashes light.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("boathook-theme");
  } catch {
    // Within a page of another site a browser may keep nothing for us.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
