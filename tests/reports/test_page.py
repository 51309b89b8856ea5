"""The report escapes what tables hold, works in a real browser, and compares two models."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pypdf
import pytest
from helpers import planted, spoken
from helpers.commands import run, saved
from helpers.reports import EVIL, IMAGE, flat, told

import headroles as hr
from headroles.analysis import role_rules
from headroles.data.readers import write
from headroles.tables import frame

# --- one file, safe and small ----------------------------------------------------------------------------------------


def test_nothing_in_the_tables_or_the_title_becomes_markup(html):
    assert len(re.findall(r"<script\b", html)) == 2
    assert len(re.findall(r"</script\b", html)) == 2
    assert EVIL not in html
    assert "<img" not in html
    assert "<h1>Heads &lt;/script&gt;&lt;script&gt;window.hacked = 1&lt;/script&gt;</h1>" in html
    data = told(html)
    assert data["title"] == f"Heads {EVIL}"
    assert data["attention"][0]["tokens"]["cross"]["queries"][1] == EVIL
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", html)


def test_the_page_names_nothing_outside_itself_and_is_small(html):
    addresses = set(re.findall(r"https?://[^\"'\s)]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, which is not fetched
    assert not re.findall(r"<link|@import|url\(", html)
    assert "default-src 'none'" in html
    assert len(told(html)["heads"]) == 144
    assert len(html.encode()) < 500_000


# --- attention on example sentences ----------------------------------------------------------------------------------


def test_the_commands_make_a_page_from_a_model(tmp_path):
    model, study, output = saved(tmp_path / "model"), tmp_path / "study", tmp_path / "new" / "page.html"
    trees = write(planted.corpus()[:20], tmp_path / "planted.conllu")
    hr.attention_examples(*hr.load(model), hr.read(trees), limit=2, study=study)
    done = run("report", study, "--output", output, "--title", "Mine & yours")
    assert done == (0, f"written: {output}\n", "")
    assert "<title>Mine &amp; yours</title>" in output.read_text()
    assert len(told(output.read_text())["attention"]) == 2
    assert run("report", tmp_path) == (
        2, "", f"headroles: no tables to report in {tmp_path}; make them with headroles score MODEL CORPUS --study "
        f"{tmp_path}\n"
    )  # fmt: skip


# --- in a real browser -----------------------------------------------------------------------------------------------


@pytest.fixture
def opened(browser, study, html) -> Iterator[Any]:
    """The page from disk; what it logs, throws and asks for is looked at in the end."""
    assert html
    address, said = (study.folder / "report.html").as_uri(), []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"thrown: {error}"))
    page.on("request", lambda request: request.url == address or said.append(f"asked for {request.url}"))
    page.goto(address)
    yield page
    hacked = page.evaluate("window.hacked")
    context.close()
    assert said == []
    assert hacked is None


PLACES = 3  # decimals of a column whose largest value is below one


def cell_of(page: Any, label: str, row: int) -> Any:
    return page.locator(f"[role=grid][aria-label='{label}'] [data-row='{row}']")


def attention_of(study: Any, kind: str, sentence: int) -> Any:
    """The row of head 1 of layer 5."""
    return study.load("attention").set_index([*frame.LEVELS, "sentence"]).loc[(kind, 5, 1, sentence)]


def title_of(page: Any) -> str:
    return f"{page.text_content('#card .kind')} / {page.text_content('#card-title')}"


@pytest.mark.slow
def test_a_click_on_a_head_opens_its_card_with_the_numbers_of_the_tables(opened, study):
    head, row = ("dec-self", 2, 5), 48 + 2 * 8 + 5
    table, effects_table = study.load("heads"), study.load("ablation-loss-head-zero")
    assert opened.locator("#card").is_hidden()
    cell = cell_of(opened, "confidence, decoder self-attention", row)
    rank = int(table["confidence"].xs("dec-self").rank(ascending=False)[2, 5])
    value, low, high = (f"{table.loc[head, f'confidence{end}']:.{PLACES}f}" for end in ("", ".low", ".high"))
    label = f"dec-self L2H5: confidence {value}, 95 % interval {low} to {high}, rank {rank} of 48"
    assert cell.get_attribute("aria-label") == label
    cell.click()
    assert title_of(opened) == "decoder self-attention / L2H5"
    assert opened.locator("#rolemaps .numbers").first.inner_text().split() == [*map(str, range(8))]
    text = opened.inner_text("#card")
    assert f"{value} [{low}, {high}]" in " ".join(text.split())
    assert f"{rank} of 48" in text
    assert f"{effects_table.loc[head, 'ablation[loss].holm']:.3f}".replace("0.000", "< 0.001") in text
    assert told((study.folder / "report.html").read_text())["prunings"][0]["fate"][row] in text
    held = role_rules.held(study.load("roles")).query("kind == 'dec-self' and layer == 2 and head == 5")
    assert [name in text for name in held["role"]] == [True] * len(held)
    none = "It has none of the roles that were looked for."
    first = held.sort_values("value", ascending=False).head(1)
    says = [f"Its role is {role} ({value:.2f} on " for role, value in zip(first["role"], first["value"], strict=True)]
    assert opened.inner_text("#card .opening").startswith(*(says or [none]))
    assert opened.evaluate("location.hash") == "#dec-self-2-5"


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_harm_is_red_and_no_effect_has_no_colour(browser, metric, tmp_path):
    page = browser.new_page()
    page.goto(flat(metric, tmp_path).as_uri())
    page.emulate_media(color_scheme="light")
    cells = page.locator("#maps .cell")
    assert page.locator("#maps .scale").inner_text().split() == ["−6.89", "6.89"]
    paint = "(one) => getComputedStyle(one).backgroundColor"
    drawn = [cells.nth(4 * (row < 4) + row % 4).evaluate(paint) for row in range(8)]  # layer 1 stands above layer 0
    variables = "(name) => getComputedStyle(document.documentElement).getPropertyValue(name)"
    paints = {}
    for name in ("--low", "--minus"):
        paper = page.evaluate(variables, name)
        paints[name] = page.evaluate(
            f"(paper) => {{ const one = document.querySelector('#tip'); one.style.background = "
            f"`color-mix(in oklab, ${{paper}} 100%, white)`; return ({paint})(one); }}", paper
        )  # fmt: skip
    assert drawn == [paints["--minus"] if row == 5 else paints["--low"] for row in range(8)]
    page.locator("#heads th button", has_text="effect on").click()
    assert page.locator("#heads tbody th").first.inner_text() == "L1H1"  # what costs most comes first
    cells.nth(0).click()
    assert "2–8 of 8" in page.inner_text("#card")
    assert "Rank 1 of the encoder self-attention heads costs the model most" in page.inner_text("#card")
    cells.nth(1).click()
    assert page.inner_text("#card li") == (
        "mine; tested on 9 sentences of an unknown corpus: removed it costs 6.890, under its pattern 0.250; "
        "explained 0.96 [0.90, 1.00]; its role is what it does"
    )
    page.close()


@pytest.mark.slow
def test_the_keyboard_moves_and_opens_cards(opened):
    first = cell_of(opened, "confidence, encoder self-attention", 0)
    first.focus()
    for key in ("ArrowRight", "ArrowUp", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowDown"):
        opened.keyboard.press(key)
    assert opened.evaluate("document.activeElement.dataset.row") == "1"
    assert opened.locator("[aria-label='confidence, encoder self-attention'] [tabindex='0']").count() == 1
    opened.keyboard.press("End")
    opened.keyboard.press("Enter")
    assert title_of(opened) == "encoder self-attention / L0H7"
    assert opened.evaluate("document.activeElement.id") == "card-title"
    opened.click("#card [data-way=up]")
    assert title_of(opened) == "encoder self-attention / L1H7"
    assert opened.locator("#card [data-way=right]").is_disabled()
    opened.keyboard.press("Escape")
    assert opened.locator("#card").is_hidden()
    assert opened.evaluate("document.activeElement.dataset.row") == "7"


@pytest.mark.slow
def test_filters_change_the_rows_and_the_count_that_is_announced(opened, study):
    held = role_rules.held(study.load("roles"))
    rows, count = opened.locator("#heads tbody tr"), opened.locator("#count")
    assert count.get_attribute("aria-live") == "polite"
    assert (rows.count(), count.text_content()) == (144, "144 of 144 heads")
    opened.select_option("#filters [name=role]", "alignment")
    expected = len(held[held["role"] == "alignment[monotone]"])
    assert 0 < expected < 144
    assert (rows.count(), count.text_content()) == (expected, f"{expected} of 144 heads")
    opened.select_option("#filters [name=role]", "none")
    free = 144 - len(held[frame.LEVELS].drop_duplicates())
    assert rows.count() == free
    opened.select_option("#filters [name=role]", "")
    opened.select_option("#filters [name=kind]", "cross")
    opened.fill("#filters [name=text]", "L3H")
    assert (rows.count(), count.text_content()) == (8, "8 of 144 heads")


@pytest.mark.slow
def test_a_column_sorts_up_and_down_with_what_is_missing_last(opened, study):
    column = study.load("heads")["alignment[monotone]"]
    header = opened.locator("#heads th", has_text="monotone alignment")
    first = opened.locator("#heads tbody tr").first
    for way, best in (("descending", column.idxmax()), ("ascending", column.idxmin())):
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == way
        assert first.locator("th").inner_text() == f"{best[0]} L{best[1]}H{best[2]}"
        assert "no value" in opened.locator("#heads tbody tr").last.text_content()
    relations = opened.locator("#relations")
    assert "NaN" not in opened.inner_text("body")
    assert f"no head has the role {EVIL}" in relations.inner_text()


@pytest.mark.slow
def test_dark_and_light(opened):
    def paper() -> str:
        return opened.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    light, button = paper(), opened.locator("#theme")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert (paper() != light, button.get_attribute("aria-pressed")) == (True, "true")
    button.click()
    assert paper() == light
    opened.emulate_media(color_scheme="dark")
    assert paper() == light  # what was chosen by hand stays
    opened.reload()
    assert (paper() != light, button.get_attribute("aria-pressed")) == (True, "true")
    opened.emulate_media(media="print")
    assert paper() == "rgb(255, 255, 255)"


@pytest.mark.slow
def test_attention_is_shown_as_matrix_and_as_arcs_and_tokens_as_text(opened, study):
    row = attention_of(study, "cross", 1)
    cell_of(opened, "confidence, cross-attention", 96 + 41).click()
    opened.click("#card [aria-label^='sentence 2']")
    matrix = opened.locator("#card .matrix")
    assert matrix.locator("tbody th").all_inner_texts() == list(row["queries"])
    best = int(np.argmax(row["weights"]))
    tip = matrix.locator("tbody td").nth(best).get_attribute("data-tip")
    size = len(row["keys"])
    assert tip == f"{row['queries'][best // size]} looks at {row['keys'][best % size]}: {row['weights'][best]:.2f}"
    assert IMAGE in opened.inner_text("#card .target")
    opened.click("#card [data-key=arcs]")
    assert opened.locator("#card .arcs path").count() == int((row["weights"].round(3) >= 0.05).sum())
    assert EVIL in opened.text_content("#card .arcview")
    opened.click("#card .thumb >> nth=3")
    assert title_of(opened) == "cross-attention / L5H3"


@pytest.mark.slow
def test_a_sound_is_shaded_by_where_a_token_listens(browser, tmp_path):
    model, tokens = spoken.listener(planted=True)
    study = hr.Study(tmp_path / "study")
    hr.score(model, tokens, spoken.corpus(tmp_path), ["links"], n_resamples=0, study=study)
    row = hr.attention_examples(model, tokens, spoken.corpus(tmp_path), limit=1, study=study).set_index(frame.LEVELS)
    page = browser.new_context().new_page()
    page.goto(f"{hr.report(study, tmp_path / 'a.html').as_uri()}#cross-0-0")
    page.press("#card [data-key=heard]", "ArrowRight")
    queries, weights = row["queries"]["cross", 0, 0], row["weights"]["cross", 0, 0].reshape(-1, 3)[1]
    said = page.inner_text("#card .listening output")
    best = f"{'abc'[weights.argmax()]}, {weights.max():.2f}"
    assert said == f"Token 2 of {len(queries)}, {queries[1]}: the head listens most to {best}."
    shades = page.eval_on_selector_all(
        "#card .listening rect", "bars => bars.map(bar => bar.getAttribute('fill-opacity'))"
    )
    assert [*map(float, shades)] == pytest.approx(np.repeat(0.15 + 0.85 * weights, [7, 6, 7]), abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dec-self", "cross"])
def test_what_the_model_wrote_is_shown_token_by_token(opened, study, kind):
    row = attention_of(study, kind, 2)
    size = len(row["keys"])
    weights = row["weights"].reshape(-1, size)
    opened.goto(f"{opened.url}#{kind}-5-1")
    opened.reload()
    assert title_of(opened).endswith("attention / L5H1")  # a link to a head opens its card
    assert opened.locator("#card [data-key=steps]").count() == 0  # the first sentence is no text of the model's own
    opened.click("#card [aria-label^='sentence 3']")
    shown, slider = opened.locator("#card .steps > span"), opened.locator("#card [data-key=step]")
    for step, press in ((1, None), (2, "ArrowRight"), (10, "End")):
        if press is not None:
            slider.press(press)
        written = len(row["queries"]) - 10 + step - 1  # the place of the token
        read = written if kind == "dec-self" else size
        assert shown.all_text_contents() == list(row["keys"])[:read]
        expected = [f"{100 * weight:.1f}%" for weight in weights[written - 1, :read]]
        assert shown.evaluate_all("spans => spans.map((one) => one.style.getPropertyValue('--share'))") == expected
        assert opened.text_content("#card .steps > strong") == row["queries"][written]
        best = int(np.argmax(weights[written - 1, :read]))
        assert f"Token {step} of 10, {row['queries'][written]}: the head looks most at {row['keys'][best]}, " in (
            opened.text_content("#card output")
        )
        assert opened.locator("#card .steps > .own").count() == (step - 1 if kind == "dec-self" else 0)
    opened.click("#card .thumb >> nth=3")
    same_step = f"Token 10 of 10, {row['queries'][-1]}"  # of another head
    assert same_step in opened.text_content("#card output")
    opened.click("#card [data-key=steps]")
    assert opened.locator("#card .matrix").count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_window(opened, width):
    opened.set_viewport_size({"width": width, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    cell_of(opened, "roles, cross-attention", 96 + 9).click()
    card = opened.locator("#card").bounding_box()
    assert card["x"] + card["width"] <= width
    assert opened.evaluate("document.getElementById('page').inert") == (width == 400)
    opened.click("#card .close")
    assert opened.evaluate("document.activeElement.dataset.row") == "105"


@pytest.mark.slow
def test_everything_that_can_be_used_has_a_name_for_a_screen_reader(opened):
    cell_of(opened, "roles, encoder self-attention", 0).click()
    opened.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    nodes = opened.context.new_cdp_session(opened).send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node.get("ignored")]
    named = {"button", "gridcell", "link", "combobox", "searchbox", "grid", "region", "image", "table", "heading"}
    found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in shown if "role" in node]
    assert [one for one in found if one[0] in named and not one[1].strip()] == []
    kinds = [kind for kind, _ in found]
    assert kinds.count("gridcell") > 144 * 5
    assert {"main", "banner", "navigation", "complementary", "status"} <= set(kinds)


@pytest.mark.slow
def test_print_has_every_section_the_open_card_and_no_controls(opened):
    cell_of(opened, "confidence, encoder self-attention", 3).click()
    opened.emulate_media(media="print")
    for name in ("overview", "roles", "pruning", "curves", "relate", "table", "sources"):
        assert opened.locator(f"#{name}").is_visible()
    assert opened.locator("#card-title").is_visible()
    assert not any(one.is_visible() for one in opened.locator(".controls").all())
    assert opened.evaluate("getComputedStyle(document.body).fontVariantLigatures") == "none"
    others = "main > section:not([aria-labelledby=table])"
    opened.evaluate(f"document.querySelectorAll('{others}').forEach(part => part.remove())")
    written = (page.extract_text() for page in reversed(pypdf.PdfReader(io.BytesIO(opened.pdf())).pages))
    pages = (unicodedata.normalize("NFKC", text) for text in written)  # fonts have ligatures
    rows = list(islice((page for page in pages if len(re.findall(r"L\d+H\d+", page)) > 10), 3))
    assert len(rows) > 1
    assert all("confidence" in page for page in rows)  # a table over several pages repeats its head


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_a_map_of_many_layers_fits_the_window_with_layers_to_the_right_or_up_on_a_phone(browser, width, tmp_path):
    index = frame.index({("dec-self", layer): 9 for layer in range(30)})
    scores = {"sink[first]": np.full(270, 0.9), "induction": np.full(270, 0.1)}
    scores["sink[special]"] = np.zeros(270)  # no special token
    scores["induction"][[17 * 9 + 3, 18 * 9 + 6]] = 0.7, 0.8
    heads = frame.table(scores, index, "model:made by hand")
    hr.save_table(heads, tmp_path / "heads.parquet")
    hr.save_table(hr.roles(heads), tmp_path / "roles.parquet")
    page = browser.new_page(viewport={"width": width, "height": 850})
    page.goto(hr.report(tmp_path, tmp_path / "report.html").absolute().as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cells = page.locator("#rolemaps .cell")
    assert cells.count() == 270
    boxes = {place: cell_of(page, "roles, decoder self-attention", place[0] * 9 + place[1]).bounding_box()
             for place in ((17, 3), (18, 3), (17, 4))}  # fmt: skip
    along, across = ("x", "y") if width > 520 else ("y", "x")  # of layers, of heads
    assert (boxes[18, 3][along] > boxes[17, 3][along]) == (along == "x")
    assert boxes[18, 3][across] == boxes[17, 3][across]
    assert (boxes[17, 4][across] < boxes[17, 3][across]) == (along == "x")
    assert page.locator("#rolemaps .corner").count() == 270  # sinks, of more than 256 heads
    assert page.locator(".map").count() == 3  # of roles and scores, and none of the score that is 0 everywhere
    assert "or at its left where there are more than 16 layers on a wide screen" in " ".join(
        page.inner_text(".lead").split()
    )
    bands = page.locator("#rolemaps .band").all_inner_texts()
    assert bands == (["ind", "ind"] if width > 520 else ["induct", "induct"])
    if width > 520:
        assert "L18H6 (0.80); L17H3 (0.70)" in page.inner_text("#legend")
        assert page.locator("#legend .corner").all_inner_texts() == ["sink"]  # drawn as on the map
        assert page.locator("#legend .badge").all_inner_texts() == ["induction"]
    cell_of(page, "roles, decoder self-attention", 17 * 9 + 3).focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.row") == str(18 * 9 + 3 if width > 520 else 17 * 9 + 4)
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.dataset.row") == str(18 * 9 + 4)
    page.close()


PUD = Path(__file__).resolve().parents[2] / "figures/models/minilm/pud"
UNTRAINED = PUD.parent / "untrained/pud"


@pytest.mark.slow
def test_the_page_has_the_differences_and_the_roles_that_are_gained(tmp_path):
    output = tmp_path / "report.html"
    done = run("report", UNTRAINED, PUD, "--compare", "--output", output)
    changes = hr.compare_models(UNTRAINED, PUD)
    count = sum("positional[-1]" in names.split(", ") for names in changes["gained"])
    assert f"roles gained by heads of the second model: positional[-1] by {count}, " in done.out
    assert "roles lost by heads of the second model: " in done.out
    assert done.out.endswith(f"written: {output}\n")
    html = output.read_text()
    before, after, roles = (
        hr.load_table(path) for path in (UNTRAINED / "heads.parquet", PUD / "heads.parquet", PUD / "roles.parquet")
    )
    compared = told(html)["compared"]
    (change,) = (one for one in compared["columns"] if one["name"] == "confidence")
    np.testing.assert_allclose(change["values"], after["confidence"] - before["confidence"], rtol=0, atol=1e-6)
    assert "rank" not in change
    assert (compared["first"], compared["second"]) == ("untrained/pud", "minilm/pud")
    gained = {row["role"]: row["gained"] for row in compared["roles"]}
    (_, layer, head), *_ = roles.index[roles["positional[-1]"]]
    assert gained["positional[-1]"] == [f"L{layer}H{head}"]
    section = html[html.index('id="compared"') : html.index('id="overview"')]
    assert "minilm/pud less untrained/pud" in section
    assert f"<td>L{layer}H{head}</td><td>—</td>" in section
    assert told(hr.report(PUD, tmp_path / "other.html").read_text())["compared"] is None
