// The attention of one head on an example sentence: a table of weights, arcs, or what the model writes token by token,
// and the heads beside it.
const FAINT = 0.05; // weights below it are no arcs
const looking = { sentence: 0, view: null, step: 1 }; // no view: steps if the model wrote the text, else the matrix

function weightsOf(row) {
  const sentence = data.attention[looking.sentence];
  const flat = sentence?.weights[row];
  if (!flat) return null;
  const { queries, keys, written } = sentence.tokens[heads[row].kind];
  const whole = flat.flatMap((weight) => (weight < 0 ? new Array(-weight).fill(0) : weight)); // -n are n zeros
  return { queries, keys, written, at: (i, j) => whole[i * keys.length + j] / 1000 };
}

function viewOf(written) {
  const views = written ? ["steps", "matrix", "arcs"] : ["matrix", "arcs"];
  return views.includes(looking.view) ? looking.view : views[0];
}

function attentionPart(row) {
  if (!data.attention.length) return null;
  const part = make("section", { class: "attention", "aria-label": "Attention on example sentences" });
  const draw = () => {
    const kept = part.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    part.replaceChildren(make("h3", { text: "Attention" }), choices(row, draw), ...shownFor(row));
    part.querySelector(`[data-key="${kept}"]`)?.focus();
  };
  draw();
  return part;
}

function choices(row, draw) {
  const written = data.attention[looking.sentence].tokens[heads[row].kind]?.written;
  const sentences = data.attention.map((sentence, place) => {
    const button = make("button", { type: "button", "data-key": `s${place}`, "aria-pressed": String(place === looking.sentence), "aria-label": `sentence ${place + 1}: ${sentence.text}`, text: place + 1 });
    button.addEventListener("click", () => { looking.sentence = place; draw(); });
    return button;
  });
  const views = [written ? ["steps", "Token by token"] : null, ["arcs", "Arcs"]].filter(Boolean).map(([name, text]) => {
    const pressed = viewOf(written) === name;
    const button = make("button", { type: "button", "data-key": name, "aria-pressed": String(pressed), text });
    button.addEventListener("click", () => { looking.view = pressed ? "matrix" : name; draw(); });
    return button;
  });
  return make("p", { class: "choices controls" }, "Sentence ", sentences, make("span", { class: "views" }, views));
}

function shownFor(row) {
  const sentence = data.attention[looking.sentence];
  const weights = weightsOf(row);
  const texts = [make("p", { class: "sentence", text: sentence.text }), sentence.target === null ? null : make("p", { class: "sentence target", text: sentence.target })];
  if (!weights) return [...texts.filter(Boolean), make("p", { class: "note", text: "This head is not in the table of attention." })];
  const drawn = { steps, matrix, arcs }[viewOf(weights.written)](row, weights);
  const heard = sentence.sound && heads[row].kind !== "dec-self" ? listening(weights, sentence.sound) : null;
  return [...texts, heard, drawn, beside(row)].filter(Boolean);
}

// The sign by which tokenizers mark the beginning of a word stands back.
function piece(token, tag = "span") {
  return /^[▁Ġ]./u.test(token) ? [make(tag, { class: "mark", text: token[0] }), token.slice(1)] : [token];
}

function matrix(row, { queries, keys, at }) {
  const header = make("tr", {}, make("td"), keys.map((token) => make("th", { scope: "col" }, make("span", {}, piece(token)))));
  const rows = queries.map((query, i) => make("tr", {}, make("th", { scope: "row" }, piece(query)), keys.map((token, j) => {
    const weight = at(i, j);
    const td = make("td", { "data-tip": `${query} looks at ${token}: ${number(weight, 2)}`, text: weight >= 0.995 ? "1" : weight >= 0.005 ? number(weight, 2).slice(1) : "" });
    return shaded(td, weight);
  })));
  const caption = make("caption", { text: "Each row is a token that looks, each column one that is looked at; weights to two decimals, those below 0.005 left out." });
  return scrolling("Weights of attention", make("table", { class: "matrix" }, caption, make("thead", {}, header), make("tbody", {}, rows)));
}

function shaded(element, weight) {
  element.style.setProperty("--share", `${(100 * weight).toFixed(1)}%`);
  if (weight >= 0.5) element.classList.add(weight < 0.65 ? "middling" : "deep"); // black and white reach 4.5:1 on either side
  return element;
}

// What the model has read when it writes a token, shaded by the weights of the query before it, which writes it.
function steps(row, { queries, keys, written, at }) {
  const given = queries.length - written;
  const own = heads[row].kind !== "cross"; // keys are the text itself
  const [text, label] = [make("p", { class: "steps" }), make("output", { class: "small" })];
  const slider = make("input", { type: "range", class: "controls", min: 1, max: written, value: looking.step, "data-key": "step", "aria-label": "Number of the token that the model writes" });
  const show = () => {
    looking.step = Number(slider.value);
    const next = given + looking.step - 1;
    const read = own ? keys.slice(0, next) : keys;
    const best = read.reduce((top, _, j) => (at(next - 1, j) > at(next - 1, top) ? j : top), 0);
    const tokens = read.map((token, j) => shaded(make("span", { class: own && j >= given ? "own" : "", "data-tip": `${queries[next]} is written with ${number(at(next - 1, j), 2)} on ${token}` }, piece(token)), at(next - 1, j)));
    text.replaceChildren(...tokens, make("strong", {}, piece(queries[next])));
    label.textContent = `Token ${looking.step} of ${written}, ${queries[next]}: the head looks most at ${keys[best]}, ${number(at(next - 1, best), 2)}.`;
  };
  slider.addEventListener("input", show);
  show();
  return make("figure", {}, slider, label, text, make("figcaption", { class: "small", text: "The weights with which the model wrote the framed token; tokens with a line below are its own." }));
}

function arcs(row, { queries, keys, at }) {
  const [line, wide] = [19, 420];
  const tall = line * Math.max(queries.length, keys.length) + 8;
  const y = (place, count) => 4 + line * (place + 0.5) + (line * (Math.max(queries.length, keys.length) - count)) / 2;
  const drawn = make("g", { class: "arcs" });
  queries.forEach((query, i) => keys.forEach((token, j) => {
    const weight = at(i, j);
    if (weight < FAINT) return;
    const [from, to] = [y(i, queries.length), y(j, keys.length)];
    const path = make("path", { d: `M130 ${from} C210 ${from} 210 ${to} 290 ${to}`, "stroke-opacity": Math.max(0.12, weight).toFixed(2), "stroke-width": (0.8 + 2.6 * weight).toFixed(2), "data-from": i });
    drawn.append(path);
  }));
  const side = (tokens, x, anchor) => tokens.map((text, place) => make("text", { x, y: y(place, tokens.length) + 4, "text-anchor": anchor, "data-query": anchor === "end" ? place : null }, piece(text, "tspan")));
  const strongest = queries.map((query, i) => {
    const best = keys.reduce((top, _, j) => (at(i, j) > at(i, top) ? j : top), 0);
    return `${query} looks most at ${keys[best]}, ${number(at(i, best), 2)}`;
  });
  const svg = make("svg", { viewBox: `0 0 ${wide} ${tall}`, class: "arcview", role: "img", "aria-label": strongest.join("; ") }, drawn, ...side(queries, 124, "end"), ...side(keys, 296, "start"));
  svg.addEventListener("pointerover", (event) => {
    const query = event.target.dataset?.query;
    drawn.classList.toggle("chosen", query !== undefined);
    drawn.querySelectorAll("path").forEach((path) => path.classList.toggle("on", path.dataset.from === query));
  });
  return make("figure", {}, svg, make("figcaption", { class: "small", text: `Left: tokens that look; right: what they look at. Weights below ${FAINT} are left out; point at a token to see only its own.` }));
}

// The loudness of the sound, each frame shaded by the weight of one token on the word or pause it belongs to.
function listening({ queries, keys, at }, { widths, loudness }) {
  const owner = widths.flatMap((width, j) => new Array(width).fill(j));
  const bars = loudness.map((level, x) => make("rect", { x, y: 20 - 20 * level - 0.3, width: 1, height: 40 * level + 0.6 }));
  const svg = make("svg", { viewBox: `0 0 ${loudness.length} 40`, preserveAspectRatio: "none", "aria-hidden": "true" }, bars);
  const label = make("output", { class: "small" });
  const slider = make("input", { type: "range", class: "controls", min: 1, max: queries.length, value: Math.min(looking.step, queries.length), "data-key": "heard", "aria-label": "Number of the token that looks" });
  const show = () => {
    looking.step = Number(slider.value);
    const i = looking.step - 1;
    const best = keys.reduce((top, _, j) => (at(i, j) > at(i, top) ? j : top), 0);
    bars.forEach((bar, x) => bar.setAttribute("fill-opacity", (0.15 + 0.85 * at(i, owner[x])).toFixed(2)));
    label.textContent = `Token ${i + 1} of ${queries.length}, ${queries[i]}: the head listens most to ${keys[best]}, ${number(at(i, best), 2)}.`;
  };
  slider.addEventListener("input", show);
  show();
  return make("figure", { class: "listening" }, slider, label, svg, make("figcaption", { class: "small", text: "The sound from left to right; height: loudness (40 dB), shade: the weight of the token on the word or pause (…)." }));
}

function beside(row) {
  const head = heads[row];
  const own = heads.filter((one) => one.kind === head.kind && one.layer === head.layer);
  const pictures = own.map((one) => {
    const button = make("button", { type: "button", class: one.row === row ? "thumb here" : "thumb", "data-key": `t${one.row}`, "aria-current": one.row === row ? "true" : null, "aria-label": `${called(one)}, the same sentence` });
    button.append(thumbnail(weightsOf(one.row)), make("span", { text: one.head }));
    button.addEventListener("click", () => openCard(one.row));
    return button;
  });
  return make("div", { class: "beside" }, make("h4", { text: `The heads of layer ${head.layer} on this sentence` }), make("div", { class: "thumbs" }, pictures));
}

function thumbnail(weights) {
  if (!weights) return make("span", { text: NONE });
  const { queries, keys, at } = weights;
  const svg = make("svg", { viewBox: `0 0 ${keys.length} ${queries.length}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  queries.forEach((_, i) => keys.forEach((__, j) => {
    const weight = at(i, j);
    if (weight >= FAINT) svg.append(make("rect", { x: j, y: i, width: 1, height: 1, "fill-opacity": Math.min(1, weight * 1.2).toFixed(2) }));
  }));
  return svg;
}
