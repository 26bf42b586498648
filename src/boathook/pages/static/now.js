"use strict";
{
  const board = document.getElementById("now");
  const link = document.getElementById("now-link");
  const setStatus = (text) => { link.textContent = text; };

  // Only changed parts are replaced, so that focus and selection in other parts are kept.
  const shown = new Map();
  const parse = (html) => new DOMParser().parseFromString(html, "text/html").body;
  const remember = (root) => { for (const part of root.querySelectorAll("[id^='n-']:not(h2)")) shown.set(part.id, part.outerHTML); };
  const update = (html) => {
    for (const part of parse(html).querySelectorAll("[id^='n-']:not(h2)")) {
      const old = document.getElementById(part.id);
      if (!old || shown.get(part.id) === part.outerHTML || old.contains(document.activeElement)) continue;
      shown.set(part.id, part.outerHTML);
      old.replaceWith(part);
      part.classList.add("now-fresh");
      tellTimes(part);
    }
  };

  // EventSource reconnects by itself; if it cannot connect, the state is polled instead.
  let stream = null;
  let retrying = 0;
  const stop = () => {
    clearTimeout(retrying);
    stream?.close();
    stream = null;
  };
  const signedOut = () => {
    stop();
    setStatus("You are signed out; reload the page to sign in");
  };
  const again = async () => {
    stop();
    try {
      const answer = await fetch(board.dataset.state, { headers: { accept: "text/event-stream" } });
      if (answer.status === 401) return signedOut();
      if (answer.ok) {
        update(await answer.text());
        setStatus("Live, updated every few seconds");
      } else setStatus("The console does not respond; retrying");
    } catch {
      setStatus("Connection lost; retrying");
    }
    retrying = setTimeout(start, 5000);
  };
  const start = () => {
    stop();
    if (document.hidden) return;
    stream = new EventSource(board.dataset.live);
    stream.addEventListener("state", (event) => {
      update(event.data);
      setStatus("Live");
    });
    stream.addEventListener("end", signedOut);
    stream.addEventListener("error", () => {
      setStatus("Connection lost; retrying");
      if (stream?.readyState === EventSource.CLOSED) again();
    });
  };
  remember(board.cloneNode(true));
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  start();

  // Charts are drawn from the data in the tables next to them.
  const region = document.getElementById("now-charts");
  const plots = [];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const numbersOf = (table) => {
    const rows = [...table.tBodies[0].rows];
    const value = (cell) => (cell.textContent === "" ? null : Number(cell.textContent));
    const titles = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);
    return {
      titles,
      data: [rows.map((row) => Number(row.cells[0].dataset.at)), ...titles.map((_, n) => rows.map((row) => value(row.cells[n + 1])))],
    };
  };
  const clock = (_, ats) => ats.map((at) => {
    const text = new Date(at * 1000).toISOString();
    return at % 86400 ? text.slice(11, 16) : text.slice(5, 10);
  });
  const axis = () => ({ stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } });
  const draw = (figure) => {
    const place = figure.querySelector(".now-plot");
    const table = figure.querySelector("details table");
    if (!place || !table) return;
    const { titles, data } = numbersOf(table);
    const series = titles.map((title, n) => ({
      label: title, stroke: colour(`--chart-${n + 1}`), width: 2, dash: n ? [2 + 4 * n, 3] : undefined, spanGaps: false, points: { show: data[0].length < 3 },
    }));
    const plot = new uPlot({
      width: place.clientWidth, height: 220, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 0) * 1.1)] } },
      axes: [{ ...axis(), values: clock }, { ...axis(), size: 60 }], series: [{ label: "UTC", value: (_, at) => (at === null ? "" : new Date(at * 1000).toISOString().slice(5, 16).replace("T", " ")) }, ...series], cursor: { drag: { x: false, y: false } },
    }, data, place);
    plots.push([plot, place]);
  };
  const redraw = () => {
    for (const [plot] of plots.splice(0)) plot.destroy();
    for (const figure of region.querySelectorAll("[data-chart]")) draw(figure);
  };
  const refresh = async () => {
    if (document.hidden || region.contains(document.activeElement)) return;
    const open = new Set([...region.querySelectorAll("[data-chart]:has(details[open])")].map((one) => one.dataset.chart));
    const answer = await fetch(region.dataset.charts, { headers: { "HX-Request": "true" } }).catch(() => null);
    if (!answer?.ok) return;
    region.replaceChildren(...parse(await answer.text()).children);
    for (const figure of region.querySelectorAll("[data-chart]")) {
      const details = figure.querySelector("details");
      if (details) details.open = open.has(figure.dataset.chart);
    }
    redraw();
  };
  redraw();
  setInterval(refresh, 30000);
  document.addEventListener("boathook:theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    for (const [plot, place] of plots) plot.setSize({ width: place.clientWidth, height: 220 });
  });
}
