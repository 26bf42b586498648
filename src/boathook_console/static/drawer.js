"use strict";
// On wide screens, a link with data-drawer opens its page in a drawer beside the list. The address bar shows that page,
// so that it can be shared and reloaded; back and Escape close the drawer. Without this script the link is a plain link.
{
  const drawer = document.getElementById("drawer");
  const content = drawer.querySelector(".content");
  const whole = drawer.querySelector("a");
  const isWide = matchMedia("(min-width: 1100px)");
  const addressOf = (place) => place.pathname + place.search;
  const list = { address: addressOf(location), title: document.title };
  let opener = null;
  let shown = "";
  let newest = 0;

  // Labels of the page must not point at fields of the list.
  const separateIds = (part) => {
    for (const one of part.querySelectorAll("[id]")) {
      if (!document.getElementById(one.id)) continue;
      const id = `drawer-${one.id}`;
      for (const name of ["for", "aria-describedby", "aria-labelledby", "aria-controls"]) {
        for (const user of part.querySelectorAll(`[${name}="${CSS.escape(one.id)}"]`)) user.setAttribute(name, id);
      }
      one.id = id;
    }
  };
  const loadFiles = (page) => {
    for (const file of page.head.querySelectorAll("link[rel=stylesheet], script[src]")) {
      const name = file.src ? "src" : "href";
      const address = file.getAttribute(name);
      if (document.head.querySelector(`[${name}="${CSS.escape(address)}"]`)) continue;
      const added = document.createElement(file.tagName);
      if (name === "href") added.rel = "stylesheet";
      added[name] = address;
      document.head.append(added);
    }
  };
  const fetchPage = async (address) => {
    const answer = await fetch(address);
    if (!answer.ok || answer.redirected) return null;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    return page.querySelector("main h1") && page;
  };
  const open = async (address, remember) => {
    newest += 1;
    const number = newest;
    const page = await fetchPage(address).catch(() => null);
    if (number !== newest) return;
    if (!page) return location.assign(address);
    loadFiles(page);
    const main = page.querySelector("main");
    for (const part of main.querySelectorAll(".toast, [data-page-only], :scope > .crumbs")) part.remove();
    content.replaceChildren();
    separateIds(main);
    content.append(...main.childNodes);
    drawer.setAttribute("aria-label", content.querySelector("h1").textContent.trim());
    whole.href = address;
    remember?.(address);
    shown = address;
    document.title = page.title;
    drawer.hidden = false;
    drawer.scrollTop = 0;
    drawer.focus();
    htmx.process(content);
    tellTimes(content);
  };
  const close = () => {
    newest += 1;
    drawer.hidden = true;
    content.replaceChildren();
    document.title = list.title;
    // A live list may have replaced the row.
    const links = [...document.querySelectorAll("a[data-drawer]")];
    (opener?.isConnected ? opener : links.find((link) => addressOf(link) === shown))?.focus();
  };
  // One step back leads to the list, however many of its rows were opened.
  const remember = (address) => {
    if (drawer.hidden) history.pushState({ drawer: address }, "", address);
    else history.replaceState({ drawer: address }, "", address);
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-drawer]");
    if (!link || drawer.contains(link) || !isWide.matches || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    opener = link;
    open(addressOf(link), remember);
  });
  drawer.querySelector("button").addEventListener("click", () => history.back());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || drawer.hidden || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    history.back();
  });
  addEventListener("popstate", () => {
    const address = addressOf(location);
    if (history.state?.drawer === address && address !== list.address) open(address);
    else if (address !== list.address) location.reload(); // this page was loaded by an address of the drawer
    else if (!drawer.hidden) close();
  });
}
