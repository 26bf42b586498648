// Runs before the first paint, so that a dark page does not flash light and a narrow sidebar does not move the page.
"use strict";
{
  const stored = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // In an embedded page, a browser may block access to localStorage.
    }
  };
  const theme = stored("boathook-theme");
  const isForced = "theme" in document.documentElement.dataset; // by the link into the portal
  if (!isForced && (theme === "light" || theme === "dark")) document.documentElement.dataset.theme = theme;
  if (stored("boathook-sidebar") === "narrow") document.documentElement.dataset.sidebar = "narrow";
}
