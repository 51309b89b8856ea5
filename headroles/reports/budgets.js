// Maps of layers x key-value heads: what streaming costs, and which of them keep their whole cache.
function budgetMap(one) {
  const layers = [...new Set(one.rows.map((row) => row.layer))];
  const across = layers.length > DEEP; // layers to the right
  const [up, right] = across ? ["group", "layer"] : ["layer", "group"];
  const wide = Math.max(...one.rows.map((row) => row[right])) + 1;
  const largest = Math.max(...one.rows.map((row) => Math.abs(row.effect[0])));
  const places = [...new Set(one.rows.map((row) => row[up]))].sort((a, b) => b - a);
  const rows = places.map((place) => make("div", { role: "row" },
    make("span", { role: "rowheader", class: "layer", "aria-label": `${up} ${place}`, text: place }),
    one.rows.filter((row) => row[up] === place).map((row) => {
      const tile = make("span", { role: "gridcell", class: `tile ${row.effect[0] > 0 ? "worse" : "above"}${row.kept ? " kept" : ""}`, "data-tip": groupInWords(one, row) });
      tile.style.gridColumn = row[right] + 2; // layers with a window leave a gap
      tile.style.setProperty("--share", `${largest ? ((100 * Math.abs(row.effect[0])) / largest).toFixed(1) : 0}%`);
      return tile;
    })));
  if (across) rows.push(numbered(wide));
  const map = make("div", { role: "grid", class: `map${across ? " across" : ""}`, "aria-label": `budget by ${one.name}; the numbers are in the table below` }, rows);
  map.style.setProperty("--wide", wide);
  return map;
}

function groupInWords(one, row) {
  const [value, low, high] = row.effect;
  return `layer ${row.layer} key-value head ${row.group}: ${row.kept ? "keeps its whole cache" : "streams"}, effect of streaming ${number(value, one.decimals)} ${interval(low, high, one.decimals)}`.trim();
}

function drawBudgets() {
  put("budgetmaps", data.budgets.map((one) => {
    const kept = one.rows.filter((row) => row.kept).length;
    const title = `By ${one.name}: ${kept} of ${one.rows.length} keep their whole cache; the others the first ${one.sink} and the latest ${one.recent} tokens`;
    const columns = [
      { title: "key-value head", key: (row) => 1000 * row.layer + row.group, cell: (row) => make("th", { scope: "row", text: `layer ${row.layer} key-value head ${row.group}` }) },
      { title: "cache", key: (row) => (row.kept ? "whole" : "streams"), cell: (row) => make("td", { text: row.kept ? "whole" : "streams" }) },
      plain("effect of streaming (nats)", (row) => row.effect[0], (row) => estimate(...row.effect, one.decimals)),
      plain("p", (row) => row.p, (row) => make("td", { class: "n", text: chance(row.p) })),
    ];
    return make("figure", { class: "plot" }, make("h3", { text: one.from }), make("figcaption", { text: title }), budgetMap(one), numbers(title, columns, one.rows));
  }));
}
