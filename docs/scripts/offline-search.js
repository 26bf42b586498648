// Search on a page that was opened from a disk. Browsers start no worker there, so the worker's code runs in a hidden
// frame, and this speaks to it as one speaks to a worker.
"use strict";

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, one) => before.then(() => load(inside.document, one)), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      load(inside.document, new URL(address, location.href).href).then(() => {
        for (const data of this.waiting.splice(0)) this.tell(data);
        this.waiting = null;
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.tell(data);
    }

    tell(data) {
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}

function load(target, address) {
  return new Promise((resolve, reject) => {
    const script = target.createElement("script");
    script.src = address;
    script.onload = resolve;
    script.onerror = reject;
    target.head.append(script);
  });
}
