"use strict";

// The history is not refreshed while the user has a part of it open or focused.
document.addEventListener("htmx:beforeRequest", (event) => {
  const history = event.target;
  if (history.id !== "history" || event.detail.requestConfig.verb !== "get") return;
  if (history.querySelector("details[open]") || history.contains(document.activeElement)) event.preventDefault();
});

const zone = document.getElementById("zone");
if (zone) {
  const show = () => {
    zone.textContent = isUtc() ? "UTC" : "Local time";
    zone.title = isUtc() ? "Show local time" : "Show UTC";
    tellZone(document);
    tellTimes(document);
  };
  zone.hidden = false;
  zone.addEventListener("click", () => {
    localStorage.setItem("boathook-zone", isUtc() ? "local" : "utc");
    show();
  });
  show();
}

// The live tail adds new matches on top and updates those shown. What the reader looks at does not move.
const MAX_TAIL_ROWS = 500;
const follow = document.getElementById("follow");
if (follow) {
  let url = new URL(follow.dataset.tail, location.href);
  let timer = 0;
  const note = document.getElementById("tail-note");
  // Rows may get other heights once their table is laid out. By then the reader may have scrolled, which must stay.
  const keepPlace = (body, change) => {
    const anchor = document.activeElement?.closest?.("#found tr") ?? (scrollY > 0 ? [...(body?.rows ?? [])].find((row) => row.getBoundingClientRect().bottom > 0) : null);
    const before = anchor?.getBoundingClientRect().top;
    change();
    if (!anchor) return;
    const correct = () => scrollBy(0, anchor.getBoundingClientRect().top - before);
    correct();
    const place = scrollY;
    requestAnimationFrame(() => { if (scrollY === place) correct(); });
  };
  const add = (body, table) => {
    const fresh = [...table.rows];
    const shown = new Map([...body.rows].map((row) => [row.dataset.id, row]));
    const isGap = "cut" in table.dataset && !fresh.some((row) => shown.has(row.dataset.id));
    for (const row of fresh) {
      const old = shown.get(row.dataset.id);
      if (old) {
        if (old.cells[3].innerHTML !== row.cells[3].innerHTML) old.cells[3].replaceChildren(...row.cells[3].childNodes);
      } else body.insertBefore(row, [...body.rows].find((one) => one.dataset.id < row.dataset.id) ?? null);
    }
    while (body.rows.length > MAX_TAIL_ROWS && !body.rows[body.rows.length - 1].contains(document.activeElement)) body.deleteRow(-1);
    tellTimes(body);
    note.textContent = isGap ? "Events arrive faster than they can be shown; some are left out. Narrow the filter, or reload." : "";
  };
  const rows = () => document.querySelector("#found .events tbody");
  const merge = (table) => {
    const body = rows();
    if (!body) {
      if (table.rows.length) location.reload();
      return;
    }
    keepPlace(body, () => add(body, table));
    const newest = body.rows[0]?.querySelector("time")?.dateTime;
    if (newest) url.searchParams.set("after", newest);
  };
  const poll = async () => {
    try {
      const answer = document.hidden ? null : await fetch(url, { headers: { "HX-Request": "true" } });
      if (answer?.status === 401) location.reload();
      if (answer?.ok) merge(new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("table"));
    } catch {
      keepPlace(rows(), () => { note.textContent = "The server does not answer; trying again."; });
    }
    if (follow.getAttribute("aria-pressed") === "true") timer = setTimeout(poll, 2000);
  };
  follow.hidden = false;
  follow.addEventListener("click", () => {
    const isOn = follow.getAttribute("aria-pressed") !== "true";
    follow.setAttribute("aria-pressed", String(isOn));
    clearTimeout(timer);
    if (isOn) poll();
  });
}
