// Tables that sort by a click on a column's head, and the table of all heads with its filters.
const order = new Intl.Collator("en", { numeric: true });

function sortable(caption, columns, rows, { hidden = false, finish = (cells) => cells } = {}) {
  const body = make("tbody");
  const header = make("tr");
  const table = make("table", {}, make("caption", { class: hidden ? "unseen" : null, text: caption }), make("thead", {}, header), body);
  let state = { at: -1, down: false };
  let shown = rows;
  const draw = () => {
    const { at, down } = state;
    const key = columns[at]?.key;
    const ranked = key ? [...shown].sort((a, b) => compare(key(a), key(b), down)) : shown;
    body.replaceChildren(...ranked.map((row) => make("tr", {}, finish(columns.map((column) => column.cell(row)), row))));
    [...header.children].forEach((th, place) => th.setAttribute("aria-sort", place !== at ? "none" : down ? "descending" : "ascending"));
  };
  columns.forEach((column, at) => {
    const button = make("button", { type: "button", class: "sort", text: column.title });
    button.addEventListener("click", () => {
      const first = column.number === true && !column.rising; // the largest number first, texts from A
      state = { at, down: state.at === at ? !state.down : first };
      draw();
    });
    header.append(make("th", { scope: "col", class: column.number ? "n" : null, title: column.about }, button));
  });
  draw();
  return { table, show: (some) => { shown = some; draw(); } };
}

function compare(a, b, down) {
  const missing = (value) => value === null || value === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b); // what is missing stays last
  const sign = typeof a === "number" ? a - b : order.compare(a, b);
  return down ? -sign : sign;
}

function measure(column) {
  return {
    title: column.label,
    about: column.about,
    number: true,
    key: (head) => column.values[head.row],
    cell: (head) => estimate(column.values[head.row], column.low?.[head.row], column.high?.[head.row], column.decimals),
  };
}

function estimate(value, low, high, decimals, note = "") {
  if (value === null || value === undefined) return make("td", { class: "n none", title: note || "no value" }, NONE, make("span", { class: "unseen", text: note || "no value" }));
  return make("td", { class: "n" }, number(value, decimals), " ", make("span", { class: "interval", text: interval(low, high, decimals) }));
}

function textOf(head) {
  const roles = rolesOf(head.row).map((role) => role.name);
  return `${head.kind} ${data.kinds[head.kind]} ${called(head)} ${roles.join(" ")}`.toLowerCase();
}

function headColumns() {
  const columns = [
    {
      title: "head", key: (head) => `${kinds.indexOf(head.kind)} ${head.layer} ${head.head}`,
      cell: (head) => make("th", { scope: "row", class: "whole" }, headButton(head)),
    },
    { title: "kind", key: (head) => head.kind, cell: (head) => make("td", { class: "whole", text: head.kind }) },
  ];
  if (data.roles.length) {
    columns.push({
      title: "roles", key: (head) => rolesOf(head.row).map((role) => role.name).join(" ") || null,
      cell: (head) => make("td", {}, rolesOf(head.row).map((role) => badge("span", unsure(role, head.row) ? `${role.name}?` : role.name, role.family, { class: "badge" }))),
    });
  }
  if (data.tests.length) columns.push(...testColumns());
  columns.push(...data.columns.filter((column) => column.main).map(measure));
  for (const pruning of data.prunings) {
    const times = (head) => pruning.fate[head.row] === null ? null : pruning.sizes.filter((size) => size.held[head.row]).length;
    columns.push({
      title: `survives ${pruning.name}`, number: true, key: times,
      about: `At how many of the ${pruning.sizes.length} sizes the head is there.`,
      cell: (head) => times(head) === null ? estimate(null, null, null, 0, "not prunable") : make("td", { class: "n", text: `${times(head)} of ${pruning.sizes.length}` }),
    });
  }
  return columns;
}

function testColumns() {
  const own = (head) => data.tests.filter((test) => test.row === head.row);
  const lines = (head, text, place = null) => make("td", { class: place }, own(head).map((test) => make("div", { class: "whole", text: `${own(head).length > 1 ? `${test.role}: ` : ""}${text(test)}` })));
  const values = (head) => own(head).map((test) => test.explained[0]).filter((value) => value !== null);
  return [
    {
      title: "explained", number: true, key: (head) => (values(head).length ? Math.max(...values(head)) : null),
      about: "The share of the cost of removal that the pattern of its role alone saves.",
      cell: (head) => lines(head, (test) => explainedInWords(test).replace("explained ", "") || NONE, "n"),
    },
    { title: "verdict", key: (head) => own(head).map((test) => test.verdict).join(" ") || null, about: "What the test of its role shows.", cell: (head) => lines(head, (test) => test.verdict) },
  ];
}

function drawHeads() {
  const made = sortable("All heads: roles, and the main measurements with 95 % intervals", headColumns(), heads, { hidden: true });
  put("heads", scrolling("All heads", made.table));
  const form = document.getElementById("filters");
  const option = (value, text) => make("option", { value, text });
  form.kind.append(option("", "all"), ...kinds.map((kind) => option(kind, data.kinds[kind])));
  const families = data.families.map(({ family }) => family);
  const single = data.roles.filter((role) => role.name !== role.family && role.held.includes(1)).map((role) => role.name);
  form.role.append(option("", "all heads"), option("any", "any role"), option("none", "no role"), ...[...families, ...single].map((name) => option(name, name)));
  const wanted = {
    "": () => true,
    any: (roles) => roles.length > 0,
    none: (roles) => roles.length === 0,
  };
  const draw = () => {
    const [kind, role, text] = [form.kind.value, form.role.value, form.text.value.trim().toLowerCase()];
    const holds = wanted[role] ?? ((roles) => roles.some((one) => one.name === role || one.family === role));
    const rows = heads.filter((head) => (!kind || head.kind === kind) && holds(rolesOf(head.row)) && textOf(head).includes(text));
    made.show(rows);
    put("count", `${rows.length} of ${heads.length} heads`);
  };
  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  draw();
}

const RELATED = {
  with: ["with", "heads with the role"], without: ["without", "heads without it"],
  difference: ["difference of means", "mean with minus mean without"], median: ["difference of medians", "median with minus median without"],
  auc: ["AUC", "chance that a head with the role has the larger outcome"],
  spearman: ["Spearman", "rank correlation of the outcome with how far a head is above the threshold"],
  within: ["within layers", "mean difference from the heads without the role in the same layer of the same kind"], p: ["p", "how often the difference within layers is as large when the role is permuted within each layer"], holm: ["Holm", "p after Holm's correction"], bh: ["BH", "p after Benjamini and Hochberg"],
};

function drawRelations() {
  const relate = data.relate;
  if (!relate) return;
  const [title, about] = [(name) => RELATED[name]?.[0] ?? name, (name) => RELATED[name]?.[1]];
  const columns = [
    { title: "role", key: (row) => row.role, cell: (row) => make("th", { scope: "row", text: row.role }) },
    { title: "outcome", key: (row) => row.outcome, cell: (row) => make("td", { text: row.outcome }, row.direction ? make("span", { class: "interval", text: row.direction }) : null) },
    ...relate.counts.map((name) => ({ title: title(name), about: about(name), number: true, key: (row) => row[name], cell: (row) => make("td", { class: "n", text: row[name] ?? NONE }) })),
    ...relate.columns.map((name) => ({
      title: title(name), about: about(name), number: true, key: (row) => row[name]?.[0],
      cell: (row) => estimate(...(row[name] ?? [null, null, null]), row.decimals[name], row.note),
    })),
    ...relate.tests.map((name) => ({ title: title(name), about: about(name), number: true, key: (row) => row[name], cell: (row) => row[name] === null ? estimate(null, null, null, 0, row.note) : make("td", { class: "n", text: chance(row[name]) }) })),
  ];
  const known = (row) => relate.columns.every((name) => row[name] !== null); // its note is about another thing
  if (relate.rows.some((row) => row.note && known(row))) columns.push({ title: "note", key: (row) => (known(row) && row.note) || null, cell: (row) => make("td", { text: known(row) ? row.note : "" }) });
  const caption = "Roles and outcomes: heads with a role beside heads without it";
  put("relations", scrolling("Roles and outcomes", sortable(caption, columns, relate.rows, { hidden: true, finish: joined }).table));
}

// Cells side by side that lack a number become one, with the reason.
function joined(cells, row) {
  const kept = [];
  for (const cell of cells) {
    const last = kept.at(-1);
    if (cell.matches(".none") && last?.matches(".none")) {
      last.colSpan += 1;
      last.className = "none";
      last.textContent = row.note || NONE;
    } else kept.push(cell);
  }
  return kept;
}
