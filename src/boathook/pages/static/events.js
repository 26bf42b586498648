"use strict";

// The history is not refreshed while the user has a part of it open or focused.
document.addEventListener("htmx:beforeRequest", (event) => {
  const story = event.target;
  if (story.id !== "story" || event.detail.requestConfig.verb !== "get") return;
  if (story.querySelector("details[open]") || story.contains(document.activeElement)) event.preventDefault();
});
