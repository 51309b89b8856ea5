// Charts of lines with whiskers, drawn as SVG from the tables, each with its numbers beside it.
const MARKS = ["circle", "square", "triangle", "diamond"];
const DASHES = ["", "5 3", "1.5 2.5", "8 3 1.5 3"];
const [WIDE, TALL, LEFT, RIGHT, TOP, BOTTOM] = [560, 330, 58, 14, 14, 52];

function ticks(low, high, about = 5) {
  const rough = (high - low) / about || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * size).find((one) => one >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => ({ at: (first + i) * step, text: number((first + i) * step, decimals) }));
}

function marker(shape, x, y, r = 3.2) {
  if (shape === "circle") return make("circle", { cx: x, cy: y, r });
  if (shape === "square") return make("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r });
  const points = shape === "triangle" ? [[0, -1.2], [1.2, 1], [-1.2, 1]] : [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]];
  return make("polygon", { points: points.map(([a, b]) => `${x + a * r},${y + b * r}`).join(" ") });
}

function chart(name, { lines, x, y, across = null, reverse = false, marks = null }) {
  const points = lines.flatMap((line) => line.points);
  const every = points.flatMap((point) => [point.y, point.low, point.high]).filter((one) => one !== null && one !== undefined);
  const [xs, ys] = [points.map((point) => point.x), every];
  const pad = 0.04 * (Math.max(...ys) - Math.min(...ys) || 1);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys) - pad, Math.max(...ys) + pad];
  const across01 = (value) => (reverse ? x1 - value : value - x0) / (x1 - x0 || 1);
  const px = (value) => LEFT + 8 + across01(value) * (WIDE - LEFT - RIGHT - 16);
  const py = (value) => TALL - BOTTOM - ((value - y0) / (y1 - y0)) * (TALL - TOP - BOTTOM);
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, class: "chart", role: "img", "aria-label": `${name}: ${y.label} by ${x.label}; the numbers are in the table below` });
  for (const { at, text } of ticks(y0, y1)) {
    svg.append(make("line", { class: "rule", x1: LEFT, x2: WIDE - RIGHT, y1: py(at), y2: py(at) }), make("text", { class: "tick", x: LEFT - 7, y: py(at) + 4, "text-anchor": "end", text }));
  }
  for (const { at, text } of marks ?? ticks(x0, x1)) svg.append(make("text", { class: "tick", x: px(at), y: TALL - BOTTOM + 20, "text-anchor": "middle", text }));
  svg.append(make("text", { class: "axis", x: (LEFT + WIDE - RIGHT) / 2, y: TALL - 6, "text-anchor": "middle", text: x.label }));
  svg.append(make("text", { class: "axis", transform: `translate(16 ${(TOP + TALL - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle", text: y.label }));
  if (across !== null) svg.append(make("line", { class: "across", x1: LEFT, x2: WIDE - RIGHT, y1: py(across), y2: py(across) }));
  const groups = lines.map((line, place) => {
    const look = { class: place < 8 ? "line" : "line solid", "data-hue": place % 8 };
    const group = make("g", look);
    const aside = (place - (lines.length - 1) / 2) * Math.min(1.6, 9 / lines.length); // so that whiskers stand side by side
    const at = line.points.map((point) => [px(point.x) + aside, py(point.y)]);
    line.points.forEach((point, i) => point.low !== null && group.append(make("line", { class: "whisker", x1: at[i][0], x2: at[i][0], y1: py(point.low), y2: py(point.high) })));
    group.append(make("polyline", { points: at.map((one) => one.join(",")).join(" "), "stroke-dasharray": DASHES[Math.floor(place / 2) % 4] }));
    at.forEach(([cx, cy]) => group.append(marker(MARKS[place % 4], cx, cy)));
    return group;
  });
  svg.append(...groups);
  return { svg, groups };
}

function key(lines, groups) {
  const items = lines.map((line, place) => {
    const sample = make("svg", { viewBox: "0 0 34 12", class: "sample", "aria-hidden": "true" }, make("g", { class: place < 8 ? "line" : "line solid", "data-hue": place % 8 },
      make("polyline", { points: "1,6 33,6", "stroke-dasharray": DASHES[Math.floor(place / 2) % 4] }), marker(MARKS[place % 4], 17, 6)));
    const button = make("button", { type: "button", class: "key", "aria-pressed": "false" }, sample, line.name);
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      items.forEach((item, other) => {
        item.firstChild.setAttribute("aria-pressed", String(on && other === place));
        groups[other].classList.toggle("faint", on && other !== place);
        groups[other].classList.toggle("fore", on && other === place);
      });
    });
    return make("li", {}, button);
  });
  return make("ul", { class: "keys" }, items);
}

function numbers(caption, columns, rows) {
  return make("details", {}, make("summary", { text: "The numbers" }), scrolling(caption, sortable(caption, columns, rows, { hidden: true }).table));
}

function plain(title, key, cell = (row) => make("td", { class: "n", text: key(row) ?? NONE })) {
  return { title, number: true, key, cell };
}

function drawCurves() {
  put("charts", data.curves.map((one) => {
    const lines = one.lines.map((line) => ({ name: line.name, points: line.points.map(([closed, x, y, low, high]) => ({ closed, x, y, low, high })) }));
    const { svg, groups } = chart(one.name, { lines, x: { label: "share of heads ablated" }, y: { label: one.label } });
    const rows = lines.flatMap((line) => line.points.map((point) => ({ name: line.name, ...point })));
    const columns = [
      { title: "order", key: (row) => row.name, cell: (row) => make("th", { scope: "row", text: row.name }) },
      plain("heads ablated", (row) => row.closed), plain("share", (row) => row.x, (row) => make("td", { class: "n", text: number(row.x, 2) })),
      plain(one.label, (row) => row.y, (row) => estimate(row.y, row.low, row.high, one.decimals)),
    ];
    return make("figure", { class: "plot" }, make("h3", { text: one.from }), svg, key(lines, groups), numbers(`${one.from}: ${one.label}`, columns, rows));
  }));
}

function drawSizes() {
  put("sizes", data.sizes.map((one) => {
    const points = one.rows.map((row) => ({ x: row.heads, y: row.value[0], low: row.value[1], high: row.value[2] }));
    const marks = points.map((point) => ({ at: point.x, text: point.x }));
    const apart = marks.filter((mark, i) => i === 0 || Math.abs(mark.at - marks[i - 1].at) > one.of / 26);
    const { svg } = chart(one.name, { lines: [{ name: one.name, points }], x: { label: `heads left of ${one.of}` }, y: { label: one.label }, across: points[0].y, reverse: true, marks: apart });
    const columns = [
      { title: "heads left", number: true, key: (row) => row.heads, cell: (row) => make("th", { scope: "row", class: "n", text: row.heads }) },
      ...one.kinds.map((kind, place) => plain(data.kinds[kind] ?? kind, (row) => row.left[place])),
      plain(one.label, (row) => row.value[0], (row) => estimate(...row.value, one.decimals)),
      plain("change", (row) => row.change?.[0], (row) => estimate(...(row.change ?? [null, null, null]), one.decimals)),
      plain("undecided gates", (row) => row.undecided),
    ];
    const made = sortable(`${one.name}: ${one.label} and heads left of each kind`, columns, one.rows);
    return make("figure", { class: "plot" }, make("h3", { text: one.from }), svg, scrolling(one.from, made.table));
  }));
}
