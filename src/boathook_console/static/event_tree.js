"use strict";
// The tree of event types in an endpoint's form. A selected group selects everything below it; deselecting a part of it
// selects the rest one by one. Without this script each checkbox is on its own, and the server ignores what a group covers.
for (const tree of document.querySelectorAll(".tree")) {
  const boxOf = (item) => item.querySelector(":scope > label input");
  const parentOf = (item) => item.parentElement.closest("li");
  const partsOf = (item) => [...item.querySelectorAll("li")];
  const show = () => {
    for (const item of [...tree.querySelectorAll("li:has(li)")].reverse()) {
      const group = boxOf(item);
      group.indeterminate = !group.checked && partsOf(item).some((part) => boxOf(part).checked);
    }
  };
  tree.addEventListener("change", (event) => {
    const item = event.target.closest("li");
    for (const part of partsOf(item)) boxOf(part).checked = event.target.checked;
    if (!event.target.checked) for (let above = parentOf(item); above; above = parentOf(above)) boxOf(above).checked = false;
    show();
  });
  for (const item of tree.querySelectorAll("li:has(li)")) {
    if (boxOf(item).checked) for (const part of partsOf(item)) boxOf(part).checked = true;
  }
  show();

  const search = document.getElementById("types-search");
  const none = tree.querySelector(":scope > p");
  search.parentElement.hidden = false;
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const item of tree.querySelectorAll("li")) item.hidden = !words.every((word) => item.dataset.words.includes(word));
    none.hidden = tree.querySelector("li:not([hidden])") !== null;
  });
  // Enter would submit the form.
  search.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
}
