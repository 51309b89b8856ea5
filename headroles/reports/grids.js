// Maps of layers x heads: a cell is a button that opens the card of its head; arrow keys move within a map.
const cells = heads.map(() => []); // every cell of each head, in all maps
const tip = document.getElementById("tip");

function grid(kind, label, fill) {
  const own = heads.filter((head) => head.kind === kind);
  const layers = [...new Set(own.map((head) => head.layer))].sort((a, b) => b - a);
  const wide = Math.max(...own.map((head) => head.head)) + 1;
  const rows = layers.map((layer) => {
    const row = make("div", { role: "row" }, make("span", { role: "rowheader", class: "layer", "aria-label": `layer ${layer}`, text: layer }));
    for (const head of own.filter((one) => one.layer === layer)) row.append(cell(head, fill));
    return row;
  });
  const map = make("div", { role: "grid", class: "map", "aria-label": `${label}, ${data.kinds[kind]}` }, rows);
  map.style.setProperty("--wide", wide);
  const last = map.querySelectorAll("[role=row]:last-child button");
  (last[0] ?? map.querySelector("button"))?.setAttribute("tabindex", "0");
  map.addEventListener("keydown", walk);
  return map;
}

function cell(head, fill) {
  const button = make("button", { type: "button", role: "gridcell", tabindex: "-1", class: "cell", "data-row": head.row });
  button.style.gridColumn = head.head + 2; // removed heads leave a gap
  fill(button, head);
  cells[head.row].push(button);
  return button;
}

function walk(event) {
  const here = event.target.closest(".cell");
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };
  if (!here || (!moves[event.key] && !["Home", "End"].includes(event.key))) return;
  event.preventDefault();
  const row = [...here.parentElement.querySelectorAll(".cell")];
  let next = event.key === "Home" ? row[0] : row.at(-1);
  if (moves[event.key]) {
    const to = neighbour(heads[here.dataset.row], ...moves[event.key]);
    next = to && event.currentTarget.querySelector(`[data-row="${to.row}"]`);
  }
  if (!next) return;
  event.currentTarget.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

function neighbour(head, up, right) {
  return heads.find((one) => one.kind === head.kind && one.layer === head.layer + up && one.head === head.head + right);
}

function heatmap(column, kind) {
  const [low, high] = column.range;
  const largest = Math.max(Math.abs(low), Math.abs(high)); // the strongest colour; no colour is 0
  const side = (value) => (column.harm ? (value * column.harm > 0 ? "worse" : "above") : value < 0 ? "below" : "above");
  const map = grid(kind, column.label, (button, head) => {
    const value = column.values[head.row];
    button.classList.add(value === null ? "empty" : side(value));
    if (value !== null) button.style.setProperty("--share", `${largest ? ((100 * Math.abs(value)) / largest).toFixed(1) : 0}%`);
    button.setAttribute("aria-label", `${called(head)}: ${column.label} ${inWords(column, head.row)}`);
  });
  const ends = [column.harm || low < 0 ? -largest : 0, largest];
  const scale = make("span", { class: "scale" }, ends.map((end) => make("span", { text: number(end, Math.min(column.decimals, 3)) })));
  scale.insertBefore(make("span", { class: ends[0] < 0 ? `ramp ${side(ends[0])}-${side(ends[1])}` : "ramp", "aria-hidden": "true" }), scale.lastChild);
  return make("figure", { title: column.about }, make("figcaption", { text: column.label }), map, scale);
}

function survivalMap(pruning, kind) {
  const sizes = pruning.sizes.length;
  const map = grid(kind, `pruning ${pruning.name}`, (button, head) => {
    const times = pruning.sizes.filter((size) => size.held[head.row]).length;
    button.classList.add("above");
    button.style.setProperty("--share", `${(100 * times) / sizes}%`);
    button.setAttribute("aria-label", `${called(head)}: pruning ${pruning.name}, ${fateOf(pruning, head.row)}`);
  });
  const ends = [0, `${sizes} sizes`].map((text) => make("span", { text }));
  const scale = make("span", { class: "scale" }, ends[0], make("span", { class: "ramp", "aria-hidden": "true" }), ends[1]);
  const about = `At how many of ${sizes} sizes (${pruning.sizes.map((size) => size.size).join(", ")} heads left) the head is there.`;
  return make("figure", { title: about }, make("figcaption", { text: `survives ${pruning.name}` }), map, scale);
}

function drawMaps() {
  const parts = kinds.map((kind) => {
    const has = (column) => column.of[kind] > 0;
    const groups = data.groups.map((group) => {
      const figures = data.columns.filter((one) => one.group === group && has(one)).map((one) => heatmap(one, kind));
      if (group === data.groups.at(-1)) {
        const may = data.prunings.filter((one) => !one.kinds.length || one.kinds.includes(kind));
        figures.push(...may.map((one) => survivalMap(one, kind)));
      }
      return figures.length ? [make("h4", { text: group }), make("div", { class: "maps" }, figures)] : [];
    });
    return [make("h3", { text: data.kinds[kind] }), ...groups.flat()];
  });
  put("maps", parts.flat(), meanings());
}

function meanings() {
  const rows = data.columns.filter((column) => column.about).flatMap((column) => [
    make("dt", {}, column.label, make("code", { text: column.name })),
    make("dd", { text: column.about }),
  ]);
  return make("details", {}, make("summary", { text: "What each measurement is" }), make("dl", { class: "meanings" }, rows));
}

function ink(colour) {
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

function badge(tag, text, family, options = {}) {
  const { colour } = data.families.find((one) => one.family === family);
  const element = make(tag, { ...options, text });
  element.style.background = colour;
  element.style.color = ink(colour);
  return element;
}

function drawRoles() {
  if (!data.roles.length) return;
  const count = (family) => heads.filter((head) => rolesOf(head.row).some((role) => role.family === family)).length;
  const [held, free] = [true, false].map((some) => data.families.filter(({ family }) => count(family) > 0 === some));
  put("legend", held.map(({ family, about }) => make("li", {},
    badge("span", family, family, { class: "badge" }), ` ${count(family)} of ${heads.length} heads${about ? `, looking ${about}` : ""}`)));
  if (free.length) document.getElementById("legend").append(make("li", { text: `no head: ${free.map(({ family }) => family).join(", ")}` }));
  put("rolemaps", kinds.filter((kind) => data.roles.some((role) => heads.some((head) => head.kind === kind && role.values[head.row] !== null))).map((kind) => {
    const title = make("h3", { text: data.kinds[kind] });
    const own = heads.filter((head) => head.kind === kind);
    if (!own.some((head) => rolesOf(head.row).length)) return make("div", {}, title, make("p", { text: `None of the ${own.length} heads has a role.` }));
    const map = grid(kind, "roles", (button, head) => {
      const held = rolesOf(head.row);
      const shown = new Map(held.map((role) => [`${role.family} ${role.short}`, role]));
      for (const role of shown.values()) {
        const sure = !unsure(role, head.row);
        button.append(badge("span", sure ? role.short : `${role.short}?`, role.family, { class: sure ? "band" : "band unsure" }));
      }
      const roles = held.map((role) => roleInWords(role, head.row)).join("; ") || "no role";
      button.setAttribute("aria-label", `${called(head)}: ${roles}`);
    });
    map.classList.add("roles");
    return make("figure", {}, title, map);
  }));
}

function showTip(event) {
  const here = event.target.closest?.(".cell, [data-tip]");
  tip.hidden = !here;
  document.querySelectorAll(".cell.same").forEach((one) => one.classList.remove("same"));
  if (!here) return;
  if (here.dataset.row) cells[here.dataset.row].forEach((one) => one.classList.add("same"));
  tip.textContent = here.dataset.tip ?? here.getAttribute("aria-label");
  const box = here.getBoundingClientRect();
  const left = Math.min(Math.max(4, box.left), innerWidth - tip.offsetWidth - 4);
  tip.style.left = `${left}px`;
  tip.style.top = box.bottom + tip.offsetHeight + 8 > innerHeight ? `${box.top - tip.offsetHeight - 6}px` : `${box.bottom + 6}px`;
}
