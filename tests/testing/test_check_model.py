"""`check_model`: its results on real architectures, a fault that fails each check, and the table of architectures."""

from __future__ import annotations

import json
import re
from functools import cache, partial
from pathlib import Path

import pytest
import torch
import transformers
from helpers import zoo as grown
from helpers.commands import run
from helpers.traces import _traces

import headroles as hr
from headroles.ablation.sweep import Sweep
from headroles.models import attention_hooks, heads, masking
from headroles.models.dummy_inputs import examples
from headroles.scores.lrp import rules
from headroles.tables.io import load_table
from headroles.testing import CHECKS, architectures, checks
from headroles.testing.case import Case
from headroles.testing.tiny_models import tiny_model

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "figures/families/families.parquet"
READ = "input_ids, pixel_values, input_features, input_values"


def whole(message):
    """The pattern that matches this message and no longer or shorter one."""
    return rf"\A{re.escape(message)}\Z"


built = cache(architectures.build)  # checks leave a model as it was


@cache
def results(name):
    """The results of the checks on an architecture."""
    return hr.check_model(built(name))


kept = cache(partial(load_table, TABLE))


def same(found, name):
    """Assert that these results of the checks are those of the kept table."""
    assert found["holds"].to_dict() == kept()["holds"].loc[name].to_dict()


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama, grouped", "bart", "llava"])
def test_check_model_of_text_models_all_yes(name):
    found = results(name)
    assert list(found.index) == list(CHECKS)
    assert list(found) == ["of", "holds", "off", "allowed", "why"]
    assert set(found["holds"]) == {"yes"}
    assert (found["off"] <= found["allowed"]).all()
    assert set(found["why"]) == {""}


def test_check_model_of_an_image_model_not_asked():
    found = results("vit")
    asked = found["holds"] != "not asked"
    assert set(found["holds"][asked]) == {"yes"}
    assert found["why"][~asked].to_dict() == {
        "confidence": "ViTForImageClassification reads no text",
        "effects": "ViTForImageClassification predicts no tokens, so it has no loss",
        "generation": "ViTForImageClassification does not generate",
        "chosen": "ViTForImageClassification predicts no tokens, so it has no loss",
    }


def test_check_model_refused_has_the_reason():
    found = results("olmo2")
    assert found["holds"].to_dict() == dict.fromkeys(CHECKS, "yes") | {"cut": "refused"}
    assert found["why"]["cut"] == (
        "heads cannot be removed from Olmo2ForCausalLM; mask them instead: heads cannot be removed from "
        "model.layers.0.self_attn: row 0 of its q_proj belongs to 4 heads (a norm over several heads, for one)"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clip", "CLIPModel has no table of token embeddings; try a submodel, such as hr.submodel(model, 'text')"),
        (
            "diffllama",
            "model.layers.0.self_attn in DiffLlamaForCausalLM attends 2 times before its output projection, "
            "which mixes the outputs of its heads; such attention is not supported",
        ),
        (
            "t5gemma2",
            "model.decoder.layers.0.self_attn in T5Gemma2ForConditionalGeneration attends from 5 queries to 12 self "
            "and cross keys in one call; such mixed attention is not supported",
        ),
    ],
)
def test_check_model_without_sites_all_refused(name, message):
    found = results(name)
    assert set(found["holds"]) == {"refused"}
    assert set(found["why"]) == {message}


def test_check_model_of_a_failing_model_no_with_the_error(monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(model.lm_head, "forward", lambda _: (_ for _ in ()).throw(ArithmeticError("on purpose")))
    found = hr.check_model(model)
    assert set(found["holds"]) == {"no"}
    assert set(found["why"]) == {"ArithmeticError: on purpose"}


@pytest.mark.slow
def test_check_model_with_inputs_leaves_the_model_unchanged(tmp_path):
    tiny_model("gemma3_text").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).train()
    before, weights = _traces(model), {name: one.clone() for name, one in model.state_dict().items()}
    ids = torch.randint(4, 90, (2, 9), generator=torch.Generator().manual_seed(5))
    assert set(hr.check_model(model, {"input_ids": ids})["holds"]) == {"yes"}
    assert _traces(model) == before
    assert all(torch.equal(one, weights[name]) for name, one in model.state_dict().items())


# --- each check can fail --------------------------------------------------------------------------------------------


def eager(change):
    """A fault: captured attention is not the attention that the model computes."""
    own = attention_hooks.eager

    return attention_hooks, "eager", lambda module: partial(change, own(module))


def wider(attend, *args, **kwargs):
    out, weights = attend(*args, **kwargs)
    return out, weights * 1.01


def unmasked(attend, module, query, key, value, _, **kwargs):
    return attend(module, query, key, value, None, **kwargs)


def mixing(change):
    """A fault in the product of gates and outputs of heads."""
    own = masking._mix
    return masking, "_mix", lambda z, g, instead: change(own, z, g, instead)


def removing_another(model, heads, **options):
    return hr.remove_heads(model, [(kind, layer, (head + 1) % 4) for kind, layer, head in heads], **options)


FAULTS = {
    "sites": lambda: (heads, "discover_sites", lambda *given, own=heads.discover_sites: own(*given)[:-1]),
    "rows": lambda: eager(wider),
    "sums": lambda: eager(wider),
    "confidence": lambda: eager(wider),
    "masks": lambda: eager(unmasked),
    "identity": lambda: mixing(lambda own, z, g, instead: own(z, g, instead) * 1.0001),
    "zero": lambda: mixing(lambda own, z, g, instead: own(z, g.roll(1, -1), instead)),
    "batched": lambda: mixing(lambda own, z, g, instead: own(z, g.flip(0) if g.ndim == 2 else g, instead)),
    "effects": lambda: (Sweep, "_gates", lambda sweep, sets: torch.ones(len(sets), len(sweep.model.index))),
    "generation": lambda: mixing(lambda own, z, g, instead: own(z, g, instead) if z.shape[1] > 1 else z),
    "forward": lambda: (rules, "whole", lambda func, x, *args, **kwargs: func(x, *args, **kwargs) * 1.001),
    "conserved": lambda: (rules, "halves", lambda func, *args, **kwargs: func(*args, **kwargs)),
    "slopes": lambda: (masking.Gate, "backward", staticmethod(partial(twice, masking.Gate.backward))),
    "chosen": lambda: (
        checks, "prune", lambda *given, **options: hr.prune(*given[:-1], f"-{given[-1]}", **options)
    ),
    "cut": lambda: (checks, "remove_heads", removing_another),
}  # fmt: skip


def twice(own, ctx, c):
    back, felt = own(ctx, c)
    return back, None if felt is None else 2 * felt


@pytest.mark.slow
@pytest.mark.parametrize("law", CHECKS)
def test_a_fault_fails_its_check(law, monkeypatch):
    monkeypatch.setattr(*FAULTS[law]())
    monkeypatch.setattr("headroles.testing.runner.CHECKS", {law: CHECKS[law]})
    found = hr.check_model(built("llama, grouped"))
    assert found["holds"][law] == "no"
    assert found["off"][law] > found["allowed"][law]
    claim = CHECKS[law].check.__doc__.splitlines()[0].removeprefix("Check that ")
    assert found["why"][law] == f"{found['off'][law]:.2g} off, {CHECKS[law].allowed:.2g} allowed: {claim}"


@pytest.mark.parametrize("law", CHECKS)
def test_a_check_documents_its_claim(law):
    assert re.fullmatch(r"Check that .*\.", CHECKS[law].check.__doc__.splitlines()[0])
    assert CHECKS[law].of in architectures.AREAS


def test_checks_are_unique():
    functions = [check.check for check in CHECKS.values()]
    assert len(set(functions)) == len(functions)
    assert {checks.sites, checks.zero, checks.cut} <= set(functions)


# --- tiny models and submodels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next", "jamba"])
def test_tiny_model_has_a_layer_of_each_kind(name):
    model = built(name)
    whole_ones = type(model.config)(**architectures.OPTIONS.get(name, {}))
    assert set(model.config.layer_types) == set(whole_ones.layer_types)
    assert sum(one.numel() for one in model.parameters()) < 1_000_000


def test_tiny_model_of_a_config_is_deterministic():
    config = transformers.LlamaConfig(num_key_value_heads=8, num_attention_heads=32, num_hidden_layers=32)
    one, other = tiny_model(config), tiny_model(config)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert [(site.heads, site.kv_heads, site.size) for site in hr.attention_sites(one)] == [(4, 2, 16)] * 2


def test_tiny_model_unknown_architecture_raises():
    version = transformers.__version__
    message = f"transformers {version} knows no architecture 'no'; expected a model_type"
    with pytest.raises(ValueError, match=whole(message)):
        tiny_model("no")
    with pytest.raises(ValueError, match=r"^no tiny model of 'ministral': .*; try options of its config$"):
        tiny_model("ministral")


def test_submodel_by_kind_and_by_module_name():
    model = tiny_model("llava")
    text = hr.submodel(model, "text")
    assert text is model.model.language_model
    assert hr.submodel(model, "language_model") is hr.submodel(model, "model.language_model") is text
    assert hr.submodel(model, "vision") is model.model.vision_tower
    assert {site.kind for site in hr.attention_sites(text)} == {"dec-self"}
    assert {site.kind for site in hr.attention_sites(hr.submodel(model, "vision"))} == {"enc-self"}
    for given, name, message in [
        (model, "audio", "no submodel 'audio' in LlavaForConditionalGeneration; expected one of: vision "
         "(model.vision_tower), text (model.language_model)"),
        (tiny_model("bert"), "text", "no submodel 'text' in BertForMaskedLM, which has none; leave the name out"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=whole(message)):
            hr.submodel(given, name)


def test_attention_sites_without_dummy_inputs_raises():
    message = (
        "LayoutLMv3Model does not run on input_ids alone (The size of tensor a (64) must match the size of tensor b "
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        hr.attention_sites(tiny_model("layoutlmv3"))
    message = (
        f"TimesFmModel reads 'past_values', for which headroles has no dummy input; expected one of: {READ}; try "
        f"hr.attention_sites(model, inputs) with the inputs of one small forward"
    )
    with pytest.raises(ValueError, match=whole(message)):
        examples(tiny_model("timesfm"))


def test_causal_multimodal_model():
    """Its class name does not end with CausalLM, and its labels have to be shifted all the same."""
    from headroles.models.head_model import HeadModel
    from headroles.scores.outputs import causal

    assert causal(HeadModel(tiny_model("llava")))
    assert not causal(HeadModel(tiny_model("bart")))
    assert not causal(HeadModel(grown.tiny("bert")))


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_check_model_command_for_a_folder_and_a_config(tmp_path):
    tiny_model("siglip").save_pretrained(tmp_path / "model")
    told = run("check-model", tmp_path / "model", "--submodel", "text")
    assert told.code == 0
    assert "SiglipTextModel: which checks hold" in told.out
    assert "SiglipTextModel does not generate" in told.out
    (tmp_path / "config.json").write_text(json.dumps(transformers.OPTConfig().to_dict()))
    told = run("check-model", "--config", tmp_path / "config.json")
    assert told.code == 0
    assert "OPTForCausalLM: which checks hold" in told.out
    assert told.out.count(" yes ") == len(CHECKS)


@pytest.mark.slow
def test_submodel_of_a_folder_is_scored_and_ablated(tmp_path):
    model = tiny_model("llava")
    case = Case(model)
    hr.save(model, case.tokenizer, tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n".join(sentence.text for sentence in case.corpus) + "\n")
    text, _ = hr.load(tmp_path / "model", submodel="text")
    assert type(text).__name__ == "LlamaModel"
    options = ("--submodel", "text", "--study", tmp_path / "study", "--resamples", 10)
    told = run("score", tmp_path / "model", tmp_path / "text.txt", "--scores", "confidence", *options)
    assert told.code == 0, told.err
    told = run("ablate", tmp_path / "model", tmp_path / "text.txt", "--metric", "agreement", *options)
    assert told.code == 0, told.err
    found = hr.Study(tmp_path / "study").scores()
    assert list(found.index) == list(hr.models.head_index(text))
    assert found["confidence"].between(0, 1).all()
    assert "model:" in hr.provenance(found, "ablation[agreement]")


def test_check_model_command_without_a_model_or_with_two_fails(tmp_path):
    for given in ([], ["one", "--config", tmp_path / "config.json"]):
        told = run("check-model", *given)
        assert (told.code, told.out) == (2, "")
        assert told.err == "headroles: give either a model or --config CONFIG.json, from which a tiny model is made\n"
    told = run("check-model", "--config", tmp_path / "none.json")
    assert told.code == 2
    assert told.err.startswith(f"headroles: could not read the config '{tmp_path / 'none.json'}': ")
    assert told.err.count("\n") == 1


@pytest.mark.slow
def test_the_table_of_architectures_is_written_into_a_readme(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{architectures.START}\nold\n{architectures.END}\nafter\n")
    found = architectures.architectures(["olmo2", "mamba", "vit"])
    counts = found["holds"].value_counts().to_dict()
    assert counts == {"yes": 25, "refused": 16, "not asked": 4}
    architectures.into(readme, found)
    assert list(found.index.unique("name")) == ["olmo2", "mamba", "vit"]
    for name in ("olmo2", "mamba", "vit"):
        same(found.loc[name], name)
    written = architectures.written(found)
    assert readme.read_text() == f"before\n{architectures.START}\n{written}\n{architectures.END}\nafter\n"
    assert "| olmo2 | yes | yes | yes | yes | refused | heads cannot be removed from " in readme.read_text()
    with pytest.raises(ValueError, match=r"^unknown architecture: got unicorn; expected one of: afmoe, "):
        architectures.architectures(["vit", "unicorn"])
    readme.write_text("nothing")
    message = f"{readme} has no place for the table; expected the lines {architectures.START!r} and "
    with pytest.raises(ValueError, match=whole(f"{message}{architectures.END!r}")):
        architectures.around(readme)


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_documentation_has_the_table_that_is_kept():
    text = (ROOT / ".docs/reference/architectures.md").read_text(encoding="utf-8")
    assert "```{include} ../../figures/families/families.md\n```" in text
    assert (TABLE.with_suffix(".md")).read_text(encoding="utf-8") == architectures.written(kept()) + "\n"


def test_the_table_has_every_architecture():
    assert list(kept().index.unique("name")) == list(dict(architectures._listed()))
    assert set(kept().index.unique("law")) == set(CHECKS)
    assert kept()["architecture"].nunique() >= 200
    attending = kept()[kept()["holds"] == "yes"].index.unique("name")
    assert len(attending) >= 200


# one of each way to attend: fused maps, one module for all layers, shared key-value heads, relative biases; a refusal,
# pictures and none at all (olmo2, vit, mamba) are in the table of the command; `headroles architectures` checks all,
# and a command OPT
REPRESENTATIVE = [
    "bert",
    "albert",
    "gpt2",
    "llama, grouped",
    "t5",
    *(name for name in grown.ALIKE.values() if name != "opt"),
]
DELICATE = ["mobilebert", "qwen2_moe", "qwen3_next", "zaya", "deepseek_v2"]  # routers, wide numbers, latents


@pytest.mark.slow
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_architecture_results_equal_the_table(name):
    same(results(name), name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # architectures warn of themselves, as of weights of no elements
@pytest.mark.parametrize("name", DELICATE)
def test_delicate_architecture_results_equal_the_table(name):
    same(results(name), name)


@pytest.mark.parametrize(("noise", "holds"), [(1e-6, "yes"), (1e-2, "not asked")])
def test_reloading_may_be_off_by_rounding_only(noise, holds, monkeypatch):
    """Loaded weights have another place in memory: products may be added in another order."""
    own = checks._reloaded
    monkeypatch.setattr(checks, "_reloaded", lambda case, model: own(case, model) * (1 + noise))
    monkeypatch.setattr("headroles.testing.runner.CHECKS", {"cut": CHECKS["cut"]})
    assert hr.check_model(built("llama"))["holds"].to_dict() == {"cut": holds}
