"use strict";

const say = (text) => {
  document.getElementById("said").textContent = text;
};

// Light and dark theme: follows the system until the user chooses one.
document.querySelector("button.theme")?.addEventListener("click", () => {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const shown = document.documentElement.dataset.theme ?? (isDark ? "dark" : "light");
  const next = shown === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("boathook-theme", next);
  document.dispatchEvent(new CustomEvent("boathook:theme"));
});

// The sidebar shows icons only after the user has collapsed it.
const collapse = document.querySelector("button.collapse");
if (collapse) {
  const page = document.documentElement;
  const show = () => {
    const isNarrow = page.dataset.sidebar === "narrow";
    collapse.setAttribute("aria-expanded", String(!isNarrow));
    for (const link of document.querySelectorAll(".sidebar li a")) link.title = isNarrow ? link.querySelector(".label").textContent : "";
  };
  collapse.hidden = false;
  collapse.addEventListener("click", () => {
    page.dataset.sidebar = page.dataset.sidebar === "narrow" ? "wide" : "narrow";
    localStorage.setItem("boathook-sidebar", page.dataset.sidebar);
    show();
  });
  show();
}

for (const button of document.querySelectorAll(".toast button")) {
  button.hidden = false;
  button.addEventListener("click", () => button.closest(".toast").remove());
}

// Times are shown relative to now, with the absolute time as title. Exact ones are the other way round: to the
// millisecond. Everything is shown, and typed, in the reader's zone or, if the reader has chosen so, in UTC.
const STEPS = [[60, "second", 1], [3600, "minute", 60], [86400, "hour", 3600], [1209600, "day", 86400]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const isUtc = () => localStorage.getItem("boathook-zone") === "utc";
const padded = (number, length = 2) => String(number).padStart(length, "0");
const exactTime = (date) => {
  const part = (name) => date[(isUtc() ? "getUTC" : "get") + name]();
  return `${padded(part("Hours"))}:${padded(part("Minutes"))}:${padded(part("Seconds"))}.${padded(part("Milliseconds"), 3)}`;
};
const exactDay = (date) => {
  const part = (name) => date[(isUtc() ? "getUTC" : "get") + name]();
  return `${part("FullYear")}-${padded(part("Month") + 1)}-${padded(part("Date"))}`;
};
const zoneName = (date) => (isUtc() ? "UTC" : new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(date).find((part) => part.type === "timeZoneName").value);
const minuteOf = (date) => exactTime(date).slice(0, 5);
const TYPED = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?))?$/;
const readTyped = (text) => {
  const parts = TYPED.exec(text.trim());
  const at = parts && new Date(`${parts[1]}T${parts[2] ?? "00:00"}${isUtc() ? "Z" : ""}`);
  return at && !Number.isNaN(at.getTime()) ? at : null;
};
document.addEventListener("formdata", (event) => {
  for (const name of ["since", "until"]) {
    const at = readTyped(String(event.formData.get(name) ?? ""));
    if (at) event.formData.set(name, at.toISOString());
  }
});
const tellZone = (root) => {
  for (const hint of root.querySelectorAll("#f-since-hint, #f-until-hint")) {
    const text = hint.lastChild;
    if (text) text.textContent = text.textContent.replace(/in (?:UTC|local time)/, isUtc() ? "in UTC" : "in local time");
  }
  for (const title of root.querySelectorAll("title[data-at]")) {
    const at = new Date(title.dataset.at);
    title.textContent = title.textContent.replace(/^.*?: /, `${exactDay(at)} ${minuteOf(at)} ${zoneName(at)}: `);
  }
};
// The server writes the values of these fields in UTC.
for (const input of document.querySelectorAll("input[type=datetime-local]")) {
  const at = new Date(`${input.value}Z`);
  if (isUtc() || Number.isNaN(at.getTime())) continue;
  input.value = `${exactDay(at)}T${minuteOf(at)}`;
  for (const label of input.labels) label.textContent = label.textContent.replace("UTC", zoneName(at));
}
const tellTimes = (root) => {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    const seconds = (at - Date.now()) / 1000;
    const step = STEPS.find(([limit]) => Math.abs(seconds) < limit);
    const ago = step ? relative.format(Math.round(seconds / step[2]), step[1]) : "";
    if ("exact" in time.dataset) {
      time.textContent = exactDay(at) === exactDay(new Date()) ? exactTime(at) : `${exactDay(at)} ${exactTime(at)}`;
      time.title = [ago, at.toISOString()].filter(Boolean).join(", ");
    } else time.textContent = ago || `${exactDay(at)} ${minuteOf(at)} ${zoneName(at)}`;
  }
};
tellTimes(document);
tellZone(document);
setInterval(() => tellTimes(document), 10000);

// A table that is too wide is shown as a list of its rows, so that no column is hidden. ARIA roles are set explicitly,
// because browsers drop the table semantics when the CSS display changes.
const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };
const prepare = (table) => {
  const titles = [...(table.tHead?.rows[0]?.cells ?? [])].map((cell) => cell.textContent.trim());
  for (const part of [table, ...table.querySelectorAll("thead, tbody, tr, td, th")]) {
    part.setAttribute("role", ROLES[part.tagName] ?? (part.closest("thead") ? "columnheader" : "rowheader"));
  }
  for (const row of table.tBodies[0]?.rows ?? []) {
    for (const cell of row.cells) cell.dataset.title = cell.colSpan > 1 ? "" : titles[cell.cellIndex] ?? "";
  }
};
const fit = (box) => {
  const table = box.querySelector(":scope > table");
  if (!table || !box.clientWidth) return;
  box.classList.remove("stacked");
  if (box.scrollWidth <= box.clientWidth) return;
  prepare(table);
  box.classList.add("stacked");
};
const widths = new WeakMap();
const sizes = new ResizeObserver((changes) => {
  for (const { target, contentRect } of changes) {
    if (widths.get(target) === contentRect.width) continue;
    widths.set(target, contentRect.width);
    fit(target);
  }
});
const watchTables = (root) => { for (const box of root.querySelectorAll(".scroll")) sizes.observe(box); };
watchTables(document);
new MutationObserver((changes) => {
  watchTables(document);
  for (const box of new Set(changes.map((change) => change.target.closest?.(".scroll")))) if (box) fit(box);
}).observe(document.body, { childList: true, subtree: true });

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const source = button.parentElement.querySelector("code");
  const label = button.textContent;
  const result = await copy(source) ? "Copied" : "Selected: copy it with the keyboard";
  button.textContent = result;
  say(result);
  setTimeout(() => { button.textContent = label; }, 1500);
});

// Browsers offer the clipboard to https and localhost only; elsewhere the selected text is copied, or stays selected.
const copy = async (source) => {
  try {
    await navigator.clipboard.writeText(source.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(source);
    const isCopied = document.execCommand("copy");
    if (isCopied) getSelection().removeAllRanges();
    return isCopied;
  }
};

// Irreversible actions need a confirmation; without scripts, the server's confirmation page or field asks for it.
const ask = document.getElementById("ask");
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.confirm || form.dataset.isConfirmed) return;
  event.preventDefault();
  event.stopPropagation();
  document.getElementById("ask-text").textContent = form.dataset.confirm;
  ask.returnValue = "no";
  ask.addEventListener("close", () => {
    if (ask.returnValue !== "yes") return;
    form.dataset.isConfirmed = "yes";
    form.requestSubmit(event.submitter);
    delete form.dataset.isConfirmed;
  }, { once: true });
  ask.showModal();
}, true);

document.addEventListener("htmx:configRequest", (event) => {
  const token = document.querySelector("meta[name=csrf-token]")?.content;
  if (token) event.detail.headers["X-CSRF-Token"] = token;
});
document.addEventListener("htmx:afterSwap", (event) => tellTimes(event.target));

const focusedRow = () => document.activeElement.closest("main tbody tr");
const moveTo = (step) => {
  const links = [...document.querySelectorAll("main table tbody tr")].map((row) => row.querySelector("a[href]")).filter((link) => link?.offsetParent);
  const at = links.findIndex((link) => link.closest("tr") === focusedRow());
  links[Math.min(links.length - 1, Math.max(0, at + step))]?.focus();
};

// A page's actions have keys, named by data-shortcut: of the focused row, of the selected rows, or of the page.
for (const hint of document.querySelectorAll(".shortcuts")) hint.hidden = false;
const findAction = (key) => {
  const named = (root) => [...(root?.querySelectorAll(`[data-shortcut="${key}"]`) ?? [])].filter((one) => one.checkVisibility());
  if (key === "x" && !focusedRow()) moveTo(1);
  const row = focusedRow();
  const box = row?.querySelector("input[type=checkbox]");
  const selected = document.querySelector("main form:has(tbody input:checked)");
  if (named(row).length) return named(row)[0];
  if (box && !selected && named(box.form).length) box.click();
  return named(selected ?? box?.form)[0] ?? named(document.querySelector("main")).find((one) => !one.closest("tbody"));
};
// An action that needs a field moves to it first; Enter there then runs this action, not the first one of the form.
const runAction = (target) => {
  const details = target.closest("summary")?.parentElement;
  if (details) {
    details.open = true;
    details.querySelector("input:not([type=hidden])").focus();
    return;
  }
  const field = document.getElementById(target.dataset.field ?? "");
  if (!field || field.value) {
    target.click();
    return;
  }
  field.focus();
  field.onkeydown = (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    field.form.requestSubmit(target);
  };
};
let isGoing = false;
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isGoing) {
    isGoing = false;
    document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    (document.querySelector("main input[type=search]") ?? document.getElementById("jump"))?.focus();
  } else if (event.key === "g") {
    isGoing = true;
    setTimeout(() => { isGoing = false; }, 1500);
  } else if (event.key === "j") moveTo(1);
  else if (event.key === "k") moveTo(-1);
  else if (event.key === "?") document.getElementById("keys").showModal();
  else if (/^[a-z]$/.test(event.key) && !event.repeat) {
    const target = findAction(event.key);
    if (!target) return;
    event.preventDefault();
    runAction(target);
  }
});
