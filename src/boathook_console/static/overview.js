"use strict";
{
  const board = document.getElementById("overview");
  const link = document.getElementById("overview-link");
  const setStatus = (text) => {
    link.textContent = text;
    link.toggleAttribute("data-is-live", text.startsWith("Live"));
  };

  // Only changed parts are replaced, so that focus and selection in other parts are kept.
  const shown = new Map();
  const parse = (html) => new DOMParser().parseFromString(html, "text/html").body;
  const remember = (root) => { for (const part of root.querySelectorAll("[id^='n-']:not(h2)")) shown.set(part.id, part.outerHTML); };
  const update = (html) => {
    for (const part of parse(html).querySelectorAll("[id^='n-']:not(h2)")) {
      const old = document.getElementById(part.id);
      if (!old || shown.get(part.id) === part.outerHTML || old.contains(document.activeElement)) continue;
      shown.set(part.id, part.outerHTML);
      if (old.open) part.open = true;
      old.replaceWith(part);
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
  const region = document.getElementById("overview-charts");
  const plots = [];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const linesOf = (table) => {
    const rows = [...table.tBodies[0].rows];
    const value = (cell) => (cell.textContent === "" ? null : Number(cell.textContent));
    const lines = [...table.tHead.rows[0].cells].slice(1).map((cell, n) => ({
      title: cell.textContent,
      colour: colour(`--${cell.dataset.colour}`),
      isStacked: "stacked" in cell.dataset,
      values: rows.map((row) => value(row.cells[n + 1])),
    }));
    return { ats: rows.map((row) => Number(row.cells[0].dataset.at)), lines };
  };
  // A stacked area reaches from 0 to the sum of its own values and those of the stacked lines after it, which cover it.
  const heights = (lines) => {
    let above = null;
    return lines.toReversed().map((line) => {
      if (!line.isStacked) return line.values;
      above = line.values.map((value, at) => (value === null ? null : value + (above?.[at] ?? 0)));
      return above;
    }).toReversed();
  };
  const clock = (_, ats) => ats.map((at) => {
    const date = new Date(at * 1000);
    return minuteOf(date) === "00:00" ? exactDay(date).slice(5) : minuteOf(date);
  });
  const tellTable = (table) => {
    table.tHead.rows[0].cells[0].textContent = `From (${zoneName(new Date())})`;
    for (const row of table.tBodies[0].rows) {
      const date = new Date(Number(row.cells[0].dataset.at) * 1000);
      row.cells[0].textContent = `${exactDay(date).slice(5)} ${exactTime(date).slice(0, 8)}`;
    }
  };
  const axis = () => ({
    stroke: colour("--faint"), font: `11px ${getComputedStyle(document.documentElement).fontFamily}`,
    grid: { stroke: colour("--border"), width: 1 }, ticks: { show: false },
  });
  const HEIGHT = 200; // the legend below makes it 240 or more
  const draw = (figure) => {
    const place = figure.querySelector(".overview-plot");
    const table = figure.querySelector("table");
    if (!place?.clientWidth || !table) return;
    const { ats, lines } = linesOf(table);
    tellTable(table);
    const name = zoneName(new Date());
    const series = lines.map((line) => ({
      label: line.title, stroke: line.colour, width: line.isStacked ? 1 : 1.75, spanGaps: false, points: { show: ats.length < 3 },
      fill: line.isStacked ? `color-mix(in srgb, ${line.colour} 40%, ${colour("--surface")})` : undefined, value: (_, __, n, at) => (at === null ? "" : line.values[at] ?? ""),
    }));
    const plot = new uPlot({
      width: place.clientWidth, height: HEIGHT, tzDate: (at) => (isUtc() ? uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : new Date(at * 1000)),
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 0) * 1.1)] } },
      axes: [{ ...axis(), values: clock, size: 30, label: name, labelSize: 16, labelGap: 0, labelFont: axis().font }, { ...axis(), size: 46 }],
      series: [{ label: name, value: (_, at) => (at === null ? "" : `${exactDay(new Date(at * 1000)).slice(5)} ${minuteOf(new Date(at * 1000))}`) }, ...series],
      cursor: { drag: { x: false, y: false }, sync: { key: "overview" }, points: { size: 6 } },
    }, [ats, ...heights(lines)], place);
    plots.push([plot, place]);
  };
  const redraw = () => {
    for (const [plot] of plots.splice(0)) plot.destroy();
    for (const figure of region.querySelectorAll("[data-chart]")) draw(figure);
  };
  const refresh = async () => {
    if (document.hidden || region.contains(document.activeElement)) return;
    const answer = await fetch(region.dataset.charts, { headers: { "HX-Request": "true" } }).catch(() => null);
    if (!answer?.ok) return;
    const { children } = parse(await answer.text());
    const open = new Set([...region.querySelectorAll("[data-chart]:has(details[open])")].map((one) => one.dataset.chart));
    const isMoreOpen = region.querySelector("#overview-more")?.open;
    region.replaceChildren(...children);
    for (const figure of region.querySelectorAll("[data-chart]")) {
      const details = figure.querySelector("details");
      if (details) details.open = open.has(figure.dataset.chart);
    }
    watchMore(isMoreOpen);
    redraw();
  };
  // A chart in a closed part has no width to be drawn in.
  const watchMore = (isOpen) => {
    const more = document.getElementById("overview-more");
    more.open = Boolean(isOpen);
    more.addEventListener("toggle", redraw);
  };
  watchMore(document.getElementById("overview-more").open); // it may have been opened before this script ran
  redraw();
  setInterval(refresh, 30000);
  document.addEventListener("boathook:theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = region.clientWidth;
  new ResizeObserver(() => {
    if (region.clientWidth === width) return;
    width = region.clientWidth;
    for (const [plot, place] of plots) plot.setSize({ width: place.clientWidth, height: HEIGHT });
  }).observe(region);
}
