"use strict";
// A link contains its token in the URL fragment, which is not sent to the server. This script submits the token once and
// removes it from the address bar.
{
  const HOME = "/portal/endpoints";
  const show = (id) => {
    document.getElementById("entering").hidden = true;
    document.getElementById(id).hidden = false;
  };
  const address = location.href;
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  const query = new URLSearchParams(location.search);
  const enter = async () => {
    history.replaceState(null, "", location.pathname + location.search);
    const fields = new URLSearchParams(query);
    fields.set("key", key);
    const entered = await fetch("/portal/enter", { method: "POST", body: fields });
    if (!entered.ok) return show("refused");
    const here = await fetch("/portal/here");
    if (here.ok) return location.replace(HOME);
    document.getElementById("apart").href = address;
    return show("cookieless");
  };
  if (key) enter().catch(() => show("refused"));
  else location.replace(HOME);
}
