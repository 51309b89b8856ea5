// Maps of layers x heads: a cell is a button that opens the card of its head; arrow keys move within a map.
const cells = heads.map(() => []); // every cell of each head, in all maps
const tip = document.getElementById("tip");

const DEEP = 16; // layers; where there are more, they go to the right
const MANY = 256; // heads; where there are more, sinks are marks in the corners of cells
const SINKS = ["sink", "sink-norm"];
const own = (kind) => heads.filter((head) => head.kind === kind);
const PHONE = matchMedia("(max-width: 520px)").matches; // layers go up there, as the screen does: cells have room for labels
const count = (kind, place) => new Set(own(kind).map((head) => head[place])).size;
const isDeep = (kind) => count(kind, "layer") > DEEP && !(PHONE && count(kind, "head") <= DEEP);

function grid(kind, label, fill) {
  const [up, right] = isDeep(kind) ? ["head", "layer"] : ["layer", "head"];
  const places = [...new Set(own(kind).map((head) => head[up]))].sort((a, b) => b - a);
  const wide = Math.max(...own(kind).map((head) => head[right])) + 1;
  const step = places.length > 40 ? 10 : places.length > DEEP ? 5 : 1; // labels that do not touch
  const rows = places.map((place) => {
    const row = make("div", { role: "row" }, make("span", { role: "rowheader", class: "layer", "aria-label": `${up} ${place}`, text: place % step ? "" : place }));
    for (const head of own(kind).filter((one) => one[up] === place)) row.append(cell(head, fill, right));
    return row;
  });
  rows.push(numbered(wide, wide > 40 ? 10 : wide > (label === "roles" ? DEEP : 8) ? 5 : 1));
  const map = make("div", { role: "grid", class: "map", "aria-label": `${label}, ${data.kinds[kind]}` }, rows);
  map.style.setProperty("--wide", wide);
  map.classList.toggle("across", isDeep(kind));
  map.classList.toggle("broad", wide > 16 && !isDeep(kind)); // as wide as a phone
  const last = rows.at(-2).querySelectorAll("button");
  (last[0] ?? map.querySelector("button"))?.setAttribute("tabindex", "0");
  map.addEventListener("keydown", walk);
  return map;
}

function numbered(wide, step) {
  const row = make("div", { class: "numbers", "aria-hidden": "true" }, make("span"));
  for (let place = 0; place < wide; place += 1) row.append(make("span", { text: place % step ? "" : place }));
  return row;
}

function cell(head, fill, right) {
  const button = make("button", { type: "button", role: "gridcell", tabindex: "-1", class: "cell", "data-row": head.row });
  button.style.gridColumn = head[right] + 2; // removed heads leave a gap
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
    const head = heads[here.dataset.row];
    const move = moves[event.key];
    const to = neighbour(head, ...(isDeep(head.kind) ? move.toReversed() : move));
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
    const has = (column) => column.of[kind] > 0 && (column.harm || column.range.some(Boolean)); // no map of zeros alone
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

function drawDifferences() {
  put("differences", kinds.flatMap((kind) => {
    const maps = data.compared.columns.filter((one) => one.of[kind] > 0).map((one) => heatmap(one, kind));
    return maps.length ? [make("h3", { text: data.kinds[kind] }), make("div", { class: "maps" }, maps)] : [];
  }));
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
  element.style.setProperty("--hue", colour);
  return element;
}

const TESTED = [ // of the tests of roles, where there are any
  ["whole", "its role is what the head does: the pattern alone costs less than removal and than other attention, saves at least half, and applies to at least half of the tokens"],
  ["part", "its role is a part of what it does"],
  ["other", "has the pattern, but the pattern does not explain it"],
  ["open", "not tested, undecided, the pattern applies to too few places, or a head without a measurable effect"],
];

const isCrowded = (kind) => isDeep(kind) || (own(kind).length > MANY && !PHONE);
const isQuiet = (kind) => isCrowded(kind) || own(kind).length > MANY || data.quiet; // where sinks are marks in the corners

function drawRoles() {
  if (!data.roles.length) return;
  const count = (family) => heads.filter((head) => rolesOf(head.row).some((role) => role.family === family)).length;
  const [held, free] = [true, false].map((some) => data.families.filter(({ family }) => count(family) > 0 === some));
  const corner = (family) => SINKS.includes(family) && kinds.every(isQuiet);
  put("legend", held.map(({ family, about }) => make("li", {},
    corner(family) ? make("span", { class: "corner", text: family }) : badge("span", family, family, { class: "badge" }), ` ${count(family)} of ${heads.length} heads${about ? `, attending ${about}` : ""}${strongest(family)}`)));
  if (free.length) document.getElementById("legend").append(make("li", { text: `no head: ${free.map(({ family }) => family).join(", ")}` }));
  for (const [mark, text] of data.tests.length ? TESTED : []) {
    document.getElementById("legend").append(make("li", {}, make("span", { class: `badge verdict ${mark}`, text: "role" }), ` ${text}`));
  }
  put("rolemaps", kinds.filter((kind) => data.roles.some((role) => heads.some((head) => head.kind === kind && role.values[head.row] !== null))).map((kind) => {
    const title = make("h3", { text: data.kinds[kind] });
    if (!own(kind).some((head) => rolesOf(head.row).length)) return make("div", {}, title, make("p", { text: `None of the ${own(kind).length} heads has a role.` }));
    const crowded = isCrowded(kind);
    const map = grid(kind, "roles", (button, head) => {
      const held = rolesOf(head.row);
      const quiet = (role) => isQuiet(kind) && SINKS.includes(role.family);
      const shown = new Map(held.filter((role) => !quiet(role)).map((role) => [`${role.family} ${role.short}`, role]));
      button.classList.toggle("corner", held.some(quiet));
      for (const role of shown.values()) {
        const sure = !unsure(role, head.row);
        const text = crowded && /^[a-z]+$/.test(role.short) ? role.short.slice(0, 3) : role.short;
        const mark = data.tests.length ? ` ${testOf(role, head.row)?.mark ?? "open"}` : "";
        button.append(badge("span", sure ? text : `${text}?`, role.family, { class: `${sure ? "band" : "band unsure"}${mark}` }));
      }
      const roles = held.map((role) => roleInWords(role, head.row)).join("; ") || "no role";
      button.setAttribute("aria-label", `${called(head)}: ${roles}`);
    });
    map.classList.add("roles");
    map.classList.toggle("crowded", crowded);
    map.classList.toggle("small", Number(map.style.getPropertyValue("--wide")) > 40); // cells too small for a text
    return make("figure", {}, title, map);
  }));
}

function strongest(family) {
  if (SINKS.includes(family) || !kinds.some(isCrowded)) return "";
  const score = (head) => Math.max(...rolesOf(head.row).filter((role) => role.family === family).map((role) => role.values[head.row]));
  const holders = heads.map((head) => [score(head), head]).filter(([value]) => value > -Infinity).sort(([a], [b]) => b - a);
  const rest = holders.length > 5 ? `, and ${holders.length - 5} more` : "";
  return `: ${holders.slice(0, 5).map(([value, head]) => `${called(head)} (${number(value, 2)})`).join("; ")}${rest}`;
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
