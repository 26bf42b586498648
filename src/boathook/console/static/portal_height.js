"use strict";
// A page that shows the portal within it is told how high it is, in the words of svix-react, whose fullSize makes room for it.
if (window.parent !== window) {
  const tell = () => {
    const height = Math.ceil(document.body.getBoundingClientRect().height);
    // Who may listen is decided by frame-ancestors, and a height is no secret.
    window.parent.postMessage({ type: "svix.iframe-resizer-height", payload: { height } }, "*");
  };
  new ResizeObserver(tell).observe(document.body);
}
