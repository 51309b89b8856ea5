"""Query heads that share keys and values are told apart by the group they are in: in tables, on maps, on cards."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import zoo
from helpers.letters import batches_of, corpus, tokens_of
from helpers.reports import told

import headroles as hr
from headroles import plots
from headroles.models import attention_hooks
from headroles.models import heads as families
from headroles.models.attention_hooks import without_cache
from headroles.tables import frame
from headroles.tables.io import load_table, save_table

pytestmark = pytest.mark.usefixtures("nothing_shown")
SIGNED = "model:x|weights:y|shared:"


def scored(name):
    return hr.score(zoo.tiny(name), tokens_of(name), corpus(3), ["confidence"], n_resamples=0)


def lines(ax):
    """(layer, left head, right head) of the lines between heads."""
    drawn = [each for each in ax.collections[1:] if hasattr(each, "get_segments")]
    segments = [segment for each in drawn for segment in each.get_segments()]
    return [(int(one[0][1]), int(one[0][0]) - 1, int(one[0][0])) for one in segments]


@pytest.mark.parametrize("name", ["llama-grouped", "mistral", "qwen3"])
def test_heads_of_a_group_read_the_same_keys(name):
    model, keys = zoo.tiny(name), {}
    batch = batches_of(model, tokens_of(name), corpus(3))[0]
    attending = attention_hooks.attending(model, lambda call: keys.update({call.module: call.key}))
    with attention_hooks.evaluating(model), attending:
        model(**batch.inputs, **without_cache(model))
    groups = hr.tables.groups(scored(name))
    for site in families.attention_sites(model):
        repeated = keys[site.module].repeat_interleave(site.heads // site.kv_heads, dim=1)  # [batch, heads, key, size]
        own = groups.loc[site.key].to_numpy()
        same = [[bool((repeated[:, a] == repeated[:, b]).all()) for b in range(site.heads)] for a in range(site.heads)]
        np.testing.assert_array_equal(own[:, None] == own, same)


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian"])
def test_without_groups_there_is_nothing_to_say(name):
    table = scored(name)
    assert hr.tables.groups(table) is None
    assert "shared:" not in frame.provenance(table, "confidence")
    assert lines(plots.heatmap(table["confidence"], kind=table.index[0][0])) == []


def test_groups_outlive_files_joins_and_columns(tmp_path):
    table = scored("llama-grouped")
    kept = load_table(save_table(table, tmp_path / "heads.parquet"))
    renamed = kept.rename(columns=lambda name: f"again {name}")
    renamed.attrs["signatures"] = {f"again {name}": text for name, text in kept.attrs["signatures"].items()}
    for one in (kept, frame.join(table, renamed), kept["confidence"]):
        assert hr.tables.groups(one).tolist() == [0, 0, 1, 1] * 2


def test_lines_stand_between_groups_where_heads_are_in_order():
    values = scored("llama-grouped")["confidence"]
    assert lines(plots.heatmap(values)) == [(0, 1, 2), (1, 1, 2)]
    assert lines(plots.heatmap(values, order="sorted")) == []


def test_layers_may_have_groups_of_other_sizes():
    index = frame.index({("dec-self", 0): 4, ("dec-self", 1): 4, ("enc-self", 0): 2})
    table = frame.table({"a": np.arange(10.0)}, index, SIGNED + "dec-self=2.4")
    assert hr.tables.groups(table)["dec-self"].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert hr.tables.groups(table)["enc-self"].tolist() == [0, 1]
    assert lines(plots.heatmap(table["a"], kind="dec-self")) == [(0, 1, 2)]
    assert lines(plots.heatmap(table["a"], kind="enc-self")) == []


def test_a_card_says_with_which_heads_it_shares(tmp_path):
    study = hr.Study(tmp_path / "study")
    save_table(scored("llama-grouped"), study.path("heads"))
    page = hr.report(study, tmp_path / "page.html").read_text(encoding="utf-8")
    assert told(page)["shared"][:3] == [f"shares its keys and values with head {other}" for other in (1, 0, 3)]
    index = frame.index({("dec-self", 0): 3})
    save_table(frame.table({"confidence": np.ones(3)}, index, SIGNED + "dec-self=3"), study.path("heads"))
    page = hr.report(study, tmp_path / "page.html", overwrite=True).read_text(encoding="utf-8")
    assert told(page)["shared"][0] == "shares its keys and values with heads 1 and 2"
