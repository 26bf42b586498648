// Before anything is shown, so that a dark page never flashes light.
"use strict";
{
  const chosen = localStorage.getItem("boathook-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
