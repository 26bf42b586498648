"use strict";

// Ticks all letters that are shown, or none where all are ticked.
for (const button of document.querySelectorAll("button[data-tick-all]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const boxes = [...button.form.querySelectorAll("input[name=id]")];
    const isAny = boxes.some((box) => !box.checked);
    for (const box of boxes) box.checked = isAny;
    button.textContent = isAny ? "Untick all" : "Tick all shown";
  });
}
