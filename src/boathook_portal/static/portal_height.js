"use strict";
// Reports the height of the portal to the embedding page, in the message format of svix-react (its fullSize option).
if (window.parent !== window) {
  const postHeight = () => {
    const height = Math.ceil(document.body.getBoundingClientRect().height);
    // frame-ancestors restricts the embedding pages, and the height is not confidential.
    window.parent.postMessage({ type: "svix.iframe-resizer-height", payload: { height } }, "*");
  };
  new ResizeObserver(postHeight).observe(document.body);
}
