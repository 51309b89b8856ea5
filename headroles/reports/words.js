// Numbers and heads in words, and elements: text is only ever inserted as text.
const data = JSON.parse(document.getElementById("data").textContent);
const heads = data.heads.map(([kind, layer, head], row) => ({ kind, layer, head, row }));
const kinds = Object.keys(data.kinds);
const NONE = "—";

function make(tag, options = {}, ...children) {
  const { text, ...attributes } = options;
  const svg = ["svg", "g", "path", "line", "circle", "rect", "text", "tspan", "title", "polyline", "polygon"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  if (text !== undefined) element.textContent = text;
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function put(id, ...children) {
  document.getElementById(id)?.replaceChildren(...children.flat().filter(Boolean));
}

function number(value, decimals) {
  if (value === null || value === undefined) return NONE;
  const text = value.toFixed(decimals);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

function interval(low, high, decimals) {
  return low === null || low === undefined ? "" : `[${number(low, decimals)}, ${number(high, decimals)}]`;
}

function chance(p) {
  if (p === null || p === undefined) return NONE;
  return p < 0.001 ? "< 0.001" : p.toFixed(3);
}

function called(head) {
  return `${kinds.length > 1 ? `${head.kind} ` : ""}L${head.layer}H${head.head}`;
}

function inFull(head) {
  return `${data.kinds[head.kind]}, ${called(head)}`;
}

function inWords(column, row) {
  const value = column.values[row];
  if (value === null) return "no value";
  const parts = [number(value, column.decimals)];
  if (column.low?.[row] !== null && column.low !== undefined) {
    parts.push(`95 % interval ${number(column.low[row], column.decimals)} to ${number(column.high[row], column.decimals)}`);
  }
  if (column.rank?.[row]) parts.push(`rank ${rankOf(column, row)}`);
  if (column.p) parts.push(`p ${chance(column.p[row])}`);
  return parts.join(", ");
}

function rankOf(column, row) {
  if (column.rank[row] === null) return NONE;
  const [first, last] = column.rank[row]; // heads with equal values share their ranks
  return `${first === last ? first : `${first}–${last}`} of ${column.of[heads[row].kind]}`;
}

function rolesOf(row) {
  return data.roles.filter((role) => role.held[row]);
}

function unsure(role, row) {
  return role.unsure.includes(row); // roles that are shown as one are sure if one of them is
}

function testOf(role, row) {
  return data.tests.find((test) => test.row === row && test.role === role.name);
}

function explainedInWords({ explained: [value, low, high] }) {
  return value === null ? "" : `explained ${number(value, 2)} ${interval(low, high, 2)}`;
}

function testInWords(test) {
  return test ? `; tested on ${test.on}: ${[costsInWords(test), explainedInWords(test), test.verdict].filter(Boolean).join("; ")}` : "";
}

function costsInWords({ costs: [removed, pattern, otherRemoved, otherPattern] }) {
  const others = otherRemoved === null ? "" : ` (other heads of the layer ${number(otherRemoved, 3)} and ${number(otherPattern, 3)})`;
  return `removed it costs ${number(removed, 3)}, under its pattern ${number(pattern, 3)}${others}`;
}

function roleInWords(role, row) {
  const stable = role.stability[row];
  const kept = stable === null ? "" : `, kept in ${Math.round(100 * stable)} % of resamples`;
  return `${role.name}, score ${number(role.values[row], 2)}${kept}${testInWords(testOf(role, row))}`;
}

function fateOf(pruning, row) {
  return pruning.fate[row] ?? "not prunable";
}

function headButton(head, text = called(head)) {
  const button = make("button", { type: "button", class: "link", text });
  button.addEventListener("click", () => openCard(head.row, button));
  return button;
}

function scrolling(label, ...children) {
  return make("div", { class: "wide", role: "region", "aria-label": label, tabindex: "0" }, ...children);
}
