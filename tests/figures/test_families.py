"""The table of architectures is kept, complete and repeated."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import architectures
import pytest
from helpers.checking import results

from headroles.tables.io import load_table
from headroles.testing import CHECKS

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "figures/engineering/families/families.parquet"
kept = cache(partial(load_table, TABLE))
others = cache(partial(load_table, TABLE.with_name("others.parquet")))


def same(found, name, table=None):
    """Assert that these results of the checks are those of the kept table."""
    assert found["holds"].to_dict() == (kept() if table is None else table)["holds"].loc[name].to_dict()


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_of_some_architectures_as_a_table_and_as_markdown():
    found = architectures.architectures(["olmo2", "mamba", "vit"])
    counts = found["holds"].value_counts().to_dict()
    assert counts == {"yes": 26, "refused": 17, "not asked": 5}
    assert list(found.index.unique("name")) == ["olmo2", "mamba", "vit"]
    for name in ("olmo2", "mamba", "vit"):
        same(found.loc[name], name)
    assert "| olmo2 | yes | yes | yes | yes | refused | heads cannot be removed from " in architectures.written(found)
    with pytest.raises(ValueError, match=r"^unknown architecture: got unicorn; expected one of: afmoe, "):
        architectures.architectures(["vit", "unicorn"])


def test_other_model_types_are_those_of_no_architecture_in_the_table():
    named = {architectures._kind(name) for name, _ in architectures._listed()}
    assert len(architectures.others()) > 400
    assert named.isdisjoint(architectures.others())


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_documentation_has_the_table_that_is_kept():
    text = (ROOT / ".docs/reference/architectures.md").read_text(encoding="utf-8")
    assert "```{include} ../../figures/engineering/families/families.md\n```" in text
    assert (TABLE.with_suffix(".md")).read_text(encoding="utf-8") == architectures.written(kept()) + "\n"


def test_the_table_has_every_architecture():
    assert list(kept().index.unique("name")) == list(dict(architectures._listed()))
    assert set(kept().index.unique("check")) == set(CHECKS)
    assert kept()["architecture"].nunique() >= 200
    attending = kept()[kept()["holds"] == "yes"].index.unique("name")
    assert len(attending) >= 200


# of the model types in the table of others alone: an encoder of text, of pictures, linear attention, several encoders
OFTEN = ["clip_text_model", "detr", "qwen3_5", "seamless_m4t"]


def test_the_table_of_others_has_every_other_model_type_and_no_wrong_number_unknown():
    table = others()
    assert list(table.index.unique("name")) == architectures.others()
    wrong = set(table.index[table["holds"] == "no"].get_level_values("name"))
    assert wrong == {"hrm_text", "nemotron_asr_streaming_encoder", "qwen3_omni_moe_thinker"}  # see figures/README.md


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OFTEN)
def test_results_of_other_model_types_equal_the_table(name):
    same(architectures.checked(name, "other").loc[name], name, others())


# one of each way to attend: separate and fused maps, one module for all layers, relative biases, two models in one,
# outside of the interface; routers, wide numbers and latents. A refusal, pictures and none at all (olmo2, vit, mamba)
# are in the table of the command, shared key-value heads and BART in test_check_model_of_text_models_all_yes
REPRESENTATIVE = ["albert", "mpnet", "mobilebert", "encoder-decoder", "t5", "gptj", "gpt_neox", "qwen3_next", "zaya"]
REPRESENTATIVE += ["deepseek_v2"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # architectures warn of themselves, as of weights of no elements
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_architecture_results_equal_the_table(name):
    same(results(name), name)
