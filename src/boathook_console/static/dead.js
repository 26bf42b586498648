"use strict";

// Selects all dead letters on the page, or none if all are selected.
for (const button of document.querySelectorAll("button[data-tick-all]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const boxes = [...button.form.querySelectorAll("input[name=id]")];
    const isAny = boxes.some((box) => !box.checked);
    for (const box of boxes) box.checked = isAny;
    button.textContent = isAny ? "Clear selection" : "Select all";
  });
}
