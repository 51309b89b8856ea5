// The card of a head: what was measured of it, what it attends to, what happened to it, and the way to its neighbours.
const card = document.getElementById("card");
const narrow = matchMedia("screen and (max-width: 860px)");
let opened = null; // the row of the head on the open card
let opener = null; // what had the focus before

function openCard(row, from = null) {
  if (opened === null) opener = from ?? document.activeElement;
  else if (from && !card.contains(from)) opener = from;
  const anchor = from && !card.contains(from) ? from : null;
  const before = anchor?.getBoundingClientRect().top;
  const way = document.activeElement?.dataset?.way;
  cells.flat().forEach((one) => one.classList.remove("here"));
  cells[row].forEach((one) => one.classList.add("here"));
  opened = row;
  card.replaceChildren(...parts(row));
  card.hidden = false;
  document.body.classList.add("with-card");
  document.getElementById("page").inert = narrow.matches;
  if (anchor && !narrow.matches) scrollBy({ top: anchor.getBoundingClientRect().top - before, behavior: "instant" }); // the page became narrower
  const next = way && card.querySelector(`[data-way="${way}"]:not([disabled])`);
  (next || document.getElementById("card-title")).focus({ preventScroll: true });
  if (!next) card.scrollTop = 0;
  setAddress(`#${heads[row].kind}-${heads[row].layer}-${heads[row].head}`);
  document.dispatchEvent(new CustomEvent("headroles-opened", { detail: row }));
}

function closeCard() {
  if (opened === null) return;
  opened = null;
  card.hidden = true;
  tip.hidden = true;
  document.body.classList.remove("with-card");
  document.getElementById("page").inert = false;
  cells.flat().forEach((one) => one.classList.remove("here"));
  setAddress(location.pathname + location.search);
  opener?.focus();
}

function setAddress(address) {
  if (!data.notebook) history.replaceState(null, "", address); // in a notebook the page has none
}

function parts(row) {
  const head = heads[row];
  const close = make("button", { type: "button", class: "close controls", text: "Close" });
  close.addEventListener("click", closeCard);
  return [
    make("header", {}, make("p", { class: "kind", text: data.kinds[head.kind] }), make("h2", { id: "card-title", tabindex: "-1", text: `L${head.layer}H${head.head}` }), close),
    opening(row), ways(head), data.shared[row] && make("p", { class: "shared", text: `It ${data.shared[row]}.` }), rolePart(row), attentionPart(row), effectPart(row), pruningPart(row), scorePart(row),
  ].filter(Boolean);
}

function ways(head) {
  const steps = [["left", "←", 0, -1], ["right", "→", 0, 1], ["up", "↑", 1, 0], ["down", "↓", -1, 0]];
  return make("nav", { class: "ways controls", "aria-label": "Neighbouring heads" }, steps.map(([way, arrow, up, right]) => {
    const to = neighbour(head, up, right);
    const place = up ? `layer ${head.layer + up}` : `head ${head.head + right}`;
    const button = make("button", { type: "button", "data-way": way, disabled: !to, "aria-label": to ? `${way}: ${called(to)}` : `${way}: no head` , text: to ? `${arrow} ${place}` : arrow });
    if (to) button.addEventListener("click", () => openCard(to.row));
    return button;
  }));
}

function inOrder(row) {
  const last = (role) => SINKS.includes(role.family); // a sink does nothing
  return rolesOf(row).sort((a, b) => last(a) - last(b) || b.values[row] - a.values[row]);
}

function opening(row) {
  if (!data.roles.length) return null;
  const [first, ...others] = inOrder(row);
  const scored = (role) => `${number(role.values[row], 2)} on ${role.on}`;
  const looks = first && data.families.find(({ family }) => family === first.family).about;
  const also = others.map((role) => `${role.name} (${scored(role)})`).join(", ");
  const text = first ? `Its role is ${first.name} (${scored(first)})${looks ? `: it attends ${looks}` : ""}.${also ? ` It is also ${also}.` : ""}` : "It has none of the roles that were looked for.";
  return make("p", { class: "opening", text });
}

function rolePart(row) {
  const apart = data.tests.filter((test) => test.row === row && !rolesOf(row).some(({ name }) => name === test.role));
  if (!data.roles.length && !apart.length) return null;
  const held = inOrder(row).map((role) => {
    const stable = role.stability[row];
    const kept = stable === null ? "" : `; kept in ${Math.round(100 * stable)} % of resamples`;
    return make("li", {}, badge("span", role.name, role.family, { class: "badge" }), ` ${number(role.values[row], 2)}${kept}${testInWords(testOf(role, row))}`);
  });
  const listed = held.concat(apart.map((test) => make("li", { text: `${test.role}${testInWords(test)}` })));
  const tested = data.roles.filter((role) => role.values[row] !== null).length;
  const none = tested && !held.length ? make("p", { text: `None of the ${tested} roles that were looked for.` }) : null;
  return make("section", {}, make("h3", { text: "Roles" }), none, listed.length ? make("ul", { class: "plainlist" }, listed) : null);
}

function facts(caption, header, rows) {
  const head = make("tr", {}, header.map((text, place) => make("th", { scope: "col", class: place ? "n" : null, text })));
  return scrolling(caption, make("table", {}, make("caption", { class: "unseen", text: caption }), make("thead", {}, head), make("tbody", {}, rows)));
}

function effectPart(row) {
  const effects = data.columns.filter((column) => column.harm && column.values[row] !== null);
  if (!effects.length) return null;
  const rows = effects.map((column) => make("tr", { title: column.about },
    make("th", { scope: "row", text: column.label }), estimate(column.values[row], column.low?.[row], column.high?.[row], column.decimals),
    make("td", { class: "n", text: chance(column.p?.[row]) }), make("td", { class: "n", text: chance(column.holm?.[row]) }), rankCell(column, row)));
  const about = [...new Set(effects.map((column) => `${column.about} On ${column.on}.`))].map((text) => make("p", { class: "small", text }));
  return make("section", {}, make("h3", { text: "When it is ablated" }), facts("Effects of ablation", ["", "cost", "p", "Holm", "rank"], rows), about, ranked(row, "costs the model most"));
}

function rankCell(column, row) {
  return make("td", { class: "n", text: rankOf(column, row) });
}

function pruningPart(row) {
  if (!data.prunings.length && !data.gates.length) return null;
  const lines = data.prunings.map((one) => make("li", {}, make("strong", { text: one.name }), `: ${fateOf(one, row)}${one.fate[row] === null ? "" : ` (of ${one.of})`}.`, gateLine(one, row)));
  const histories = data.gates.filter((one) => one.open[row]).map((one) => {
    const open = one.open[row];
    const label = `${one.name}: P(open) ${open[0]} % at first, ${open.at(-1)} % after ${one.steps.at(-1)} steps`;
    const points = open.map((share, i) => `${((100 * i) / Math.max(open.length - 1, 1)).toFixed(1)},${(30 - 0.28 * share).toFixed(1)}`).join(" ");
    const svg = make("svg", { viewBox: "0 0 100 32", preserveAspectRatio: "none", class: "spark", role: "img", "aria-label": label }, make("line", { class: "rule", x1: 0, x2: 100, y1: 30, y2: 30 }), make("line", { class: "rule", x1: 0, x2: 100, y1: 2, y2: 2 }), make("polyline", { points }));
    return make("li", {}, svg, make("span", { class: "small", text: one.name }));
  });
  return make("section", {}, make("h3", { text: "In pruning" }), lines.length ? make("ul", { class: "plainlist" }, lines) : null,
    histories.length ? [make("h4", { text: "P(gate open) while gates were learnt" }), make("ul", { class: "sparks" }, histories)] : null);
}

function gateLine(pruning, row) {
  const values = (part, name, decimals) => pruning.sizes.filter((size) => size[part]?.[row] !== null && size[part] !== undefined).map((size) => `${number(size[part][row], decimals)} ${name(size)}`);
  if (pruning.fate[row] === null) return null;
  const open = values("open", (size) => `(${size.size})`, 2);
  const turns = values("order", (size) => `(${size.size} left)`, 0);
  const texts = [open.length ? `P(gate open) in the end, heads left in brackets: ${open.join(", ")}.` : "", turns.length ? `Turn of ${pruning.unit === "group" ? "its group" : "the head"} in pruning, from 1: ${turns.join(", ")}.` : ""].filter(Boolean);
  return texts.length ? make("span", { class: "small block", text: texts.join(" ") }) : null;
}

function scorePart(row) {
  const scores = data.columns.filter((column) => !column.harm && column.values[row] !== null);
  if (!scores.length) return null;
  const rows = scores.map((column) => {
    const extra = [column.baseline ? `; best fixed offset ${number(column.baseline[row], 2)}` : "", column.words ? `; over ${number(column.words[row], 0)} words` : ""].join("");
    return make("tr", { title: column.about }, make("th", { scope: "row" }, column.label, extra ? make("span", { class: "small", text: extra }) : null),
      estimate(column.values[row], column.low?.[row], column.high?.[row], column.decimals), rankCell(column, row));
  });
  return make("section", {}, make("h3", { text: "All scores" }), facts("All scores of this head", ["", "value [95 % interval]", "rank"], rows),
    ranked(row, "has the largest value"));
}

function ranked(row, first) {
  return make("p", { class: "small", text: `Rank 1 of the ${data.kinds[heads[row].kind]} heads ${first}; heads with equal values share their ranks.` });
}
