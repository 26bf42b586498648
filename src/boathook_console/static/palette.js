"use strict";
// The command palette: Ctrl-K or Cmd-K opens it, the arrow keys choose, Enter opens. htmx fetches the options. The
// browser returns the focus when the dialog closes.
{
  const dialog = document.getElementById("palette");
  const input = document.getElementById("palette-q");
  const list = document.getElementById("palette-list");
  const options = () => [...list.querySelectorAll("[role=option]")];
  const chosen = () => options().findIndex((one) => one.getAttribute("aria-selected") === "true");
  const choose = (index) => {
    const all = options();
    const at = all.length ? (index + all.length) % all.length : -1;
    all.forEach((one, number) => one.setAttribute("aria-selected", String(number === at)));
    if (at < 0) input.removeAttribute("aria-activedescendant");
    else {
      input.setAttribute("aria-activedescendant", all[at].id);
      all[at].scrollIntoView({ block: "nearest" });
    }
  };
  // Enter may come before the options for the latest text; it then opens the first of them.
  let isEntered = false;
  const isCurrent = () => list.firstElementChild?.dataset.q === input.value.trim();
  const enter = () => {
    isEntered = !isCurrent();
    if (!isEntered) options()[Math.max(0, chosen())]?.click();
  };
  const keys = { ArrowDown: () => choose(chosen() + 1), ArrowUp: () => choose(chosen() - 1), Enter: enter };
  input.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.isComposing) return;
    event.preventDefault();
    keys[event.key]();
  });
  list.addEventListener("htmx:afterSwap", () => {
    choose(0);
    if (isEntered && isCurrent()) enter();
  });
  dialog.addEventListener("close", () => { isEntered = false; });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    if (dialog.open) return dialog.close();
    input.value = "";
    dialog.showModal();
    htmx.trigger(input, "open");
  });
}
