"""Notebooks: what objects show there, and the widget of a study, without a browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers import planted, zoo
from helpers.reports import decoded, studied

import headroles as hr
from headroles.plots.styling import style_table
from headroles.tables import frame

SENTENCE = "the old dog <b> near a cat ."


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> hr.Study:
    """Scores and roles of the planted model."""
    study = hr.Study(tmp_path_factory.mktemp("planted") / "study")
    table = hr.score(
        planted.model(),
        planted.tokenizer(),
        planted.corpus()[:20],
        ["confidence", "position"],
        study=study,
        n_resamples=20,
    )
    hr.save_table(hr.roles(table), study.path("roles"))
    return study


def _data(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


# --- the widget -----------------------------------------------------------------------------------------------------


def test_the_widget_shows_the_page_of_the_report(study, tmp_path):
    page = hr.explore(study, title="T").page
    plain = hr.report(study, tmp_path / "report.html", title="T").read_text()
    theirs, ours = _data(page), _data(plain)
    assert theirs.pop("notebook") == {"attention": False}
    assert ours.pop("notebook") is None
    assert theirs == ours
    assert 'id: "notebook"' not in plain  # the script of notebooks is in them alone
    assert 'id: "notebook"' in page


def test_the_selection_is_an_index_for_ablation_and_pruning(study):
    explorer = hr.explore(study)
    assert list(explorer.selection) == []
    explorer.selected = [2, 11]
    expected = hr.models.head_index(planted.model())[[2, 11]]
    assert explorer.selection.names == frame.LEVELS
    assert list(explorer.selection) == list(expected)
    assert study.load("heads").loc[explorer.selection].shape[0] == 2
    assert torch.equal(hr.head_mask(planted.model(), explorer.selection), hr.head_mask(planted.model(), list(expected)))
    given = planted.model(), planted.tokenizer(), planted.corpus()[:3]
    effects = hr.ablate(*given, sets={"mine": explorer.selection}, metric="agreement")
    assert list(effects.index) == ["mine"]
    smaller = hr.remove_heads(deepcopy(planted.model()), explorer.selection)
    assert not set(explorer.selection) & set(hr.models.head_index(smaller))


def test_the_opened_head_is_known(study):
    explorer = hr.explore(study)
    assert explorer.head is None
    explorer.opened = 9
    assert explorer.head == ("enc-self", 1, 1)


def test_attention_on_a_typed_sentence_is_that_of_the_model(study):
    explorer = hr.explore(study, planted.model(), planted.tokenizer())
    assert _data(explorer.page)["notebook"] == {"attention": True}
    entry = explorer.attention(SENTENCE)
    assert entry["text"] == SENTENCE
    for row in (0, 11):
        matrix = hr.attention_matrix(planted.model(), planted.tokenizer(), SENTENCE, explorer.heads[row])
        assert entry["tokens"]["enc-self"]["keys"] == list(matrix)
        weights = np.reshape(decoded(entry["weights"][row]), matrix.shape) / 1000
        np.testing.assert_allclose(weights, matrix, atol=0.00101)


def test_without_a_model_no_sentence_can_be_asked(study):
    with pytest.raises(
        ValueError, match=r"^no model to compute attention: got a study alone; try hr\.explore\(study, mo"
    ):
        hr.explore(study).attention("a")
    with pytest.raises(ValueError, match=r"^attention needs both: got only one of model and tokenizer"):
        hr.explore(study, planted.model())
    with pytest.raises(ValueError, match=r"^the model has other heads than the study: got \d+; expected 16"):
        hr.explore(study, zoo.tiny("marian"), planted.tokenizer())


@pytest.mark.slow
def test_without_anywidget_the_error_names_the_extra(study):
    code = (
        "import sys; sys.modules['anywidget'] = None\nimport headroles as hr\n"
        f"try: hr.explore({str(study.folder)!r})\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        done.stdout == "explore needs anywidget: got no module 'anywidget'; in a checkout: pip install '.[notebooks]'\n"
    )


# --- what objects show ----------------------------------------------------------------------------------------------


def test_a_corpus_shows_its_size_and_first_sentences():
    target = hr.Sentence("ein <i>Haus</i>")
    corpus = hr.Corpus("c & d", tuple(hr.Sentence(f"a <b> {n}", target=target, label="x") for n in range(9)))
    shown = corpus._repr_html_()
    assert "<p>Corpus c &amp; d: 9 sentences, 9 with a translation, 9 with a label</p>" in shown
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert shown.count("<tr") == 6
    assert all(f"a &lt;b&gt; {n}" in shown for n in range(5))
    assert "with a tree" in planted.corpus()[:2]._repr_html_()


def test_a_study_shows_its_tables(study, tmp_path):
    (study.folder / "foreign.parquet").write_bytes(b"junk")
    shown = study._repr_html_()
    (study.folder / "foreign.parquet").unlink()
    assert f"Study {study.folder}: 3 tables" in shown
    for name in study.names():
        table = study.load(name)
        assert re.search(rf"<td>{name}</td>\s*<td>{len(table)}</td>", shown)
    assert "confidence, position[-" in shown
    assert ".low" not in shown
    assert "0 tables" in hr.Study(tmp_path / "none")._repr_html_()


def test_attention_sites_show_themselves():
    sites = hr.attention_sites(zoo.tiny("marian"))
    assert repr(sites).splitlines()[0] == f"{len(sites)} attention sites, {sum(site.heads for site in sites)} heads"
    assert repr(sites).splitlines()[1].endswith(f"{sites[0].heads} heads of {sites[0].size} in {sites[0].name}")
    assert len(repr(sites).splitlines()) == len(sites) + 1
    assert "Linear" not in repr(sites[0])
    shown = sites._repr_html_()
    heads = sum(site.heads for site in sites)
    assert f"<p>{len(sites)} attention sites, {heads} heads</p>" in shown
    assert all(f"<td>{site.name}</td>" in shown for site in sites)
    assert sites == list(sites)


def test_a_table_of_roles_is_coloured_where_a_head_has_the_role(study):
    roles = study.load("roles")
    html = style_table(roles).to_html()
    held = [name for name in hr.analysis.role_rules.names(roles) if roles[name].any()]
    shown = style_table(roles).data
    assert list(shown) == held
    for name in held:
        assert [text.split(" ")[0] for text in shown[name]] == [f"{value:.2f}" for value in roles[f"{name}.value"]]
    coloured = re.findall(r"((?:#T_\w+,?\s*)+)\{\s*background-color", html)
    assert sum(group.count("#T_") for group in coloured) == roles[held].sum().sum()


@pytest.mark.slow
def test_the_report_of_a_study_of_several_kinds_is_explored(tmp_path):
    explorer = hr.explore(studied(tmp_path / "study"))
    assert len(explorer.heads) == 144
    assert explorer.heads[0] == ("enc-self", 0, 0)
