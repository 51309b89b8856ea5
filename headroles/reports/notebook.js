// In a notebook: heads selected by dragging over a map, and attention on sentences typed by hand, which Python computes.
const selected = new Set(); // rows
let brush = null; // { map, from, to, rows } while the pointer is down on a map

const bar = make("div", { id: "notebook", class: "controls" });
const counter = make("span", { id: "selected", role: "status" });
const clear = make("button", { type: "button", text: "Clear" });
const typed = make("input", { name: "sentence", type: "text", autocomplete: "off", placeholder: "A sentence", "aria-label": "Sentence on which attention is computed" });
const answer = make("span", { id: "answer", role: "status" });
const ask = make("form", {}, typed, make("button", { text: "Attention" }), answer);
bar.append(counter, clear);
if (data.notebook.attention) bar.append(ask);
document.getElementById("page").prepend(bar);

function sayToPython(name, value) {
  parent.postMessage({ headroles: { name, value } }, "*");
}

function select(rows, kept) {
  if (!kept) selected.clear();
  rows.forEach((row) => selected.add(row));
  showSelected();
  sayToPython("selected", [...selected].sort((a, b) => a - b));
}

function showSelected() {
  cells.forEach((own, row) => own.forEach((one) => {
    one.classList.toggle("selected", selected.has(row));
    one.classList.toggle("brushed", Boolean(brush?.rows.includes(row)) && brush.map.contains(one));
  }));
  counter.textContent = selected.size
    ? `${selected.size} ${selected.size === 1 ? "head is" : "heads are"} selected`
    : "Drag over a map to select heads; with Shift to add some; the key S adds or removes the head in focus";
  clear.hidden = !selected.size;
}

function between(map, from, to) {
  const [a, b] = [heads[from], heads[to]];
  const within = (value, one, other) => Math.min(one, other) <= value && value <= Math.max(one, other);
  return [...map.querySelectorAll(".cell")].map((one) => Number(one.dataset.row))
    .filter((row) => within(heads[row].layer, a.layer, b.layer) && within(heads[row].head, a.head, b.head));
}

document.addEventListener("pointerdown", (event) => {
  const here = event.target.closest(".map .cell");
  if (!here || event.button) return;
  brush = { map: here.closest(".map"), from: Number(here.dataset.row), rows: [], added: event.shiftKey };
});
document.addEventListener("pointermove", (event) => {
  const here = brush && document.elementFromPoint(event.clientX, event.clientY)?.closest(".map .cell");
  if (!here || !brush.map.contains(here) || (Number(here.dataset.row) === brush.from && !brush.rows.length)) return;
  brush.rows = between(brush.map, brush.from, Number(here.dataset.row));
  showSelected();
});
document.addEventListener("pointerup", () => {
  const done = brush;
  brush = null;
  if (!done?.rows.length) return;
  select(done.rows, done.added);
  const swallow = (event) => event.stopPropagation(); // the end of a drag is no click on a head
  document.addEventListener("click", swallow, { capture: true, once: true });
  setTimeout(() => document.removeEventListener("click", swallow, { capture: true }), 0);
});
document.addEventListener("dragstart", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  const here = event.target.closest?.(".map .cell");
  if (!here || event.key.toLowerCase() !== "s") return;
  const row = Number(here.dataset.row);
  select(selected.has(row) ? [...selected].filter((one) => one !== row) : [...selected, row], false);
});
clear.addEventListener("click", () => select([], false));
document.addEventListener("headroles-opened", (event) => sayToPython("opened", event.detail));

ask.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!typed.value.trim()) return;
  answer.textContent = "computing …";
  sayToPython("sentence", typed.value);
});
addEventListener("message", (event) => {
  const message = event.source === parent ? event.data?.headroles : null;
  if (message?.error) answer.textContent = message.error;
  if (!message?.attention) return;
  answer.textContent = "";
  data.attention.push(message.attention);
  looking.sentence = data.attention.length - 1;
  openCard(opened ?? [...selected][0] ?? 0);
  document.querySelector("#card .attention")?.scrollIntoView({ block: "start" });
});

// A page in a frame has no address of its own, so that links within it would lead out of it.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  const place = document.getElementById(link.getAttribute("href").slice(1));
  place?.scrollIntoView();
  place?.focus({ preventScroll: true });
});
showSelected();
