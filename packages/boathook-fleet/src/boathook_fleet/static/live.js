const form = document.querySelector("#connect"), rows = document.querySelector("#changes");
const state = form.querySelector("output");
let since = "", socket;
form.onsubmit = (event) => { event.preventDefault(); connect(); };
function connect() {
  if (socket) { socket.onclose = null; socket.close(); }
  const scheme = location.protocol === "https:" ? "wss" : "ws", token = form.querySelector("input").value;
  socket = new WebSocket(`${scheme}://${location.host}/api/rentprog/live${since}`);
  socket.onopen = () => socket.send(JSON.stringify({ token }));
  socket.onmessage = ({ data }) => show(JSON.parse(data));
  socket.onclose = ({ code, reason }) => {
    const isRefused = code === 1008;
    state.textContent = isRefused ? reason : state.dataset.away;
    if (!isRefused) setTimeout(connect, 2000);
  };
}
function show(frame) {
  state.textContent = `${state.dataset.connected} ${frame.version}`;
  since = `?since=${frame.kind === "hello" ? frame.since : frame.version}`;
  if (frame.kind !== "change") return;
  const row = rows.insertRow(0);
  for (const key of ["version", "entity", "id", "action", "actor", "description"])
    row.insertCell().textContent = frame[key] ?? "";
  while (rows.rows.length > 200) rows.deleteRow(-1);
}
