"use strict";

// What somebody reads or writes in stays as it is: the story is fetched anew only where nothing in it is open or in use.
document.addEventListener("htmx:beforeRequest", (event) => {
  const story = event.target;
  if (story.id !== "story" || event.detail.requestConfig.verb !== "get") return;
  if (story.querySelector("details[open]") || story.contains(document.activeElement)) event.preventDefault();
});
