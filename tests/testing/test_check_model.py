"""The suite of laws: what it answers of real architectures, that each law can fail, and the table it writes."""

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
from headroles.ablation import runner
from headroles.models import attention_hooks, masking
from headroles.models import heads as families
from headroles.models.dummy_inputs import examples
from headroles.scores.lrp import rules
from headroles.tables import frame
from headroles.testing import CHECKS, architecture_table, architectures
from headroles.testing import checks as closing
from headroles.testing import checks as cutting
from headroles.testing import checks as seeing
from headroles.testing.case import Case
from headroles.testing.tiny_models import tiny_model

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "figures/families/families.parquet"
READ = "input_ids, pixel_values, input_features, input_values"


def whole(message):
    """The pattern that matches this message and no longer or shorter one."""
    return rf"\A{re.escape(message)}\Z"


@cache
def told(name):
    """What the suite answers of an architecture of the zoo."""
    return hr.check_model(architectures.build(name))


# --- what it answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama, grouped", "bart", "llava"])
def test_all_laws_hold_of_what_reads_and_writes(name):
    found = told(name)
    assert list(found.index) == list(CHECKS)
    assert list(found) == ["of", "holds", "off", "allowed", "why"]
    assert set(found["holds"]) == {"yes"}
    assert (found["off"] <= found["allowed"]).all()
    assert set(found["why"]) == {""}


def test_what_a_model_does_not_do_is_not_asked():
    found = told("vit")
    asked = found["holds"] != "not asked"
    assert set(found["holds"][asked]) == {"yes"}
    assert found["why"][~asked].to_dict() == {
        "confidence": "ViTForImageClassification reads no text",
        "effects": "ViTForImageClassification predicts no tokens, so that it has no loss",
        "generation": "ViTForImageClassification does not generate",
        "chosen": "ViTForImageClassification predicts no tokens, so that it has no loss",
    }


def test_a_refusal_is_an_answer_and_says_why():
    found = told("olmo2")
    assert found["holds"].to_dict() == dict.fromkeys(CHECKS, "yes") | {"cut": "refused"}
    assert found["why"]["cut"] == (
        "heads cannot be cut out of Olmo2ForCausalLM, gates close them: no head can be cut out of "
        "model.layers.0.self_attn: row 0 of its q_proj belongs to 4 heads (a norm over several heads, for one); close "
        "heads with gates instead"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clip", "CLIPModel has no table of token embeddings; choose a tower, such as hr.submodel(model, 'text')"),
        (
            "diffllama",
            "model.layers.0.self_attn in DiffLlamaForCausalLM attends 2 times before its output projection, so that "
            "what a head puts out cannot be told from the others",
        ),
        (
            "t5gemma2",
            "model.decoder.layers.0.self_attn in T5Gemma2ForConditionalGeneration attends from 5 tokens to 12 at once, "
            "their own and others: such heads are of no one kind",
        ),
    ],
)
def test_what_cannot_be_looked_at_is_refused_by_every_law_in_one_sentence(name, message):
    found = told(name)
    assert set(found["holds"]) == {"refused"}
    assert set(found["why"]) == {message}


def test_what_goes_wrong_in_a_model_is_a_no_with_what_it_said(monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(model.lm_head, "forward", lambda _: (_ for _ in ()).throw(ArithmeticError("on purpose")))
    found = hr.check_model(model)
    assert set(found["holds"]) == {"no"}
    assert set(found["why"]) == {"ArithmeticError: on purpose"}


def test_the_model_stays_as_it_is_whatever_its_precision(tmp_path):
    tiny_model("gemma3_text").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).train()
    before, weights = _traces(model), {name: one.clone() for name, one in model.state_dict().items()}
    assert set(hr.check_model(model)["holds"]) == {"yes"}
    assert _traces(model) == before
    assert all(torch.equal(one, weights[name]) for name, one in model.state_dict().items())


def test_it_can_be_called_with_arguments_of_ones_own():
    model = tiny_model("bert")
    ids = torch.randint(4, 90, (2, 9), generator=torch.Generator().manual_seed(5))
    found = hr.check_model(model, {"input_ids": ids})
    assert set(found["holds"]) == {"yes", "not asked"}


# --- each law can fail -----------------------------------------------------------------------------------------------


def eager(change):
    """A fault: what the seam shows of attention is not what the model computes."""
    own = attention_hooks.eager

    return attention_hooks, "eager", lambda module: partial(change, own(module))


def wider(attend, *args, **kwargs):
    out, weights = attend(*args, **kwargs)
    return out, weights * 1.01


def unmasked(attend, module, query, key, value, _, **kwargs):
    return attend(module, query, key, value, None, **kwargs)


def mixing(change):
    """A fault in how gates meet what heads put out."""
    own = masking._mix
    return masking, "_mix", lambda z, g, instead: change(own, z, g, instead)


def cutting_another(model, closed, **options):
    return hr.remove_heads(model, [(kind, layer, (head + 1) % 4) for kind, layer, head in closed], **options)


FAULTS = {
    "sites": lambda: (families, "spy", lambda model, inputs, own=families.spy: own(model, inputs)[:-1]),
    "rows": lambda: eager(wider),
    "sums": lambda: eager(wider),
    "confidence": lambda: eager(wider),
    "masks": lambda: eager(unmasked),
    "identity": lambda: mixing(lambda own, z, g, instead: own(z, g, instead) * 1.0001),
    "zero": lambda: mixing(lambda own, z, g, instead: own(z, g.roll(1, -1), instead)),
    "batched": lambda: mixing(lambda own, z, g, instead: own(z, g.flip(0) if g.ndim == 2 else g, instead)),
    "effects": lambda: (runner, "_gates", lambda model, *_: masking.head_mask(model, [])),
    "generation": lambda: mixing(lambda own, z, g, instead: own(z, g, instead) if z.shape[1] > 1 else z),
    "forward": lambda: (rules, "whole", lambda func, x, *args, **kwargs: func(x, *args, **kwargs) * 1.001),
    "conserved": lambda: (rules, "halves", lambda func, *args, **kwargs: func(*args, **kwargs)),
    "slopes": lambda: (masking.Gate, "backward", staticmethod(partial(twice, masking.Gate.backward))),
    "chosen": lambda: (
        cutting, "prune", lambda *given, keep: hr.prune(*given[:-1], f"-{given[-1]}", keep=keep)
    ),
    "cut": lambda: (cutting, "shrink", cutting_another),
}  # fmt: skip


def twice(own, ctx, c):
    back, felt = own(ctx, c)
    return back, None if felt is None else 2 * felt


@pytest.mark.parametrize("law", CHECKS)
def test_a_fault_breaks_its_law(law, monkeypatch):
    monkeypatch.setattr(*FAULTS[law]())
    found = hr.check_model(architectures.build("llama, grouped"))
    assert found["holds"][law] == "no"
    assert found["off"][law] > found["allowed"][law]
    claim = CHECKS[law].check.__doc__.splitlines()[0]
    assert found["why"][law] == f"{found['off'][law]:.2g} off, {CHECKS[law].allowed:.2g} allowed: {claim}"


@pytest.mark.parametrize("law", CHECKS)
def test_a_law_says_in_a_sentence_what_it_claims(law):
    assert re.fullmatch(r"[A-Z`].*\.", CHECKS[law].check.__doc__.splitlines()[0])
    assert CHECKS[law].of in architecture_table.AREAS


def test_laws_are_each_there_once():
    checks = [law.check for law in CHECKS.values()]
    assert len(set(checks)) == len(checks)
    assert {seeing.sites, closing.zero, cutting.cut} <= set(checks)


# --- miniatures and towers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next", "jamba"])
def test_a_miniature_has_a_layer_of_each_kind(name):
    kept = architectures.build(name).config
    whole_ones = type(kept)(**architectures.OPTIONS.get(name, {}))
    assert set(kept.layer_types) == set(whole_ones.layer_types)
    assert sum(one.numel() for one in architectures.build(name).parameters()) < 1_000_000


def test_a_miniature_is_of_a_config_too_and_the_same_each_time():
    config = transformers.LlamaConfig(num_key_value_heads=8, num_attention_heads=32, num_hidden_layers=32)
    one, other = tiny_model(config), tiny_model(config)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert [(site.heads, site.kv_heads, site.size) for site in hr.attention_sites(one)] == [(4, 2, 16)] * 2


def test_an_architecture_that_has_no_miniature_says_why():
    version = transformers.__version__
    message = f"transformers {version} knows no architecture 'no'; give a model_type"
    with pytest.raises(ValueError, match=whole(message)):
        tiny_model("no")
    with pytest.raises(ValueError, match=r"^no miniature of 'ministral': .*; give options of its config$"):
        tiny_model("ministral")


def test_a_tower_is_known_by_what_it_reads_and_by_its_name():
    model = tiny_model("llava")
    text = hr.submodel(model, "text")
    assert text is model.model.language_model
    assert hr.submodel(model, "language_model") is hr.submodel(model, "model.language_model") is text
    assert hr.submodel(model, "vision") is model.model.vision_tower
    assert {site.kind for site in hr.attention_sites(text)} == {"dec-self"}
    assert {site.kind for site in hr.attention_sites(hr.submodel(model, "vision"))} == {"enc-self"}
    for given, name, message in [
        (model, "audio", "no tower 'audio' in LlavaForConditionalGeneration; it has vision (model.vision_tower), text "
         "(model.language_model)"),
        (tiny_model("bert"), "text", "no tower 'text' in BertForMaskedLM, which is one itself: leave the name out"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=whole(message)):
            hr.submodel(given, name)


def test_a_model_that_needs_more_than_can_be_made_says_so():
    message = (
        "LayoutLMv3Model does not run on input_ids alone (The size of tensor a (64) must match the size of tensor b "
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        hr.attention_sites(tiny_model("layoutlmv3"))
    message = (
        f"TimesFmModel reads 'past_values', which headroles does not know how to make (known: {READ}); give "
        f"sites(model, inputs) the arguments of one small forward"
    )
    with pytest.raises(ValueError, match=whole(message)):
        examples(tiny_model("timesfm"))


def test_a_model_of_pictures_and_text_is_asked_for_the_next_word():
    """Its class name says nothing of a language model, and labels of its own tokens would be wrong."""
    from headroles.models.loading import causal

    assert causal(tiny_model("llava"))
    assert not causal(tiny_model("bart"))
    assert not causal(grown.tiny("bert"))


# --- commands --------------------------------------------------------------------------------------------------------


def test_conform_is_a_command_for_a_folder_and_for_a_config(tmp_path):
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


def test_a_tower_of_a_folder_is_scored_and_ablated(tmp_path):
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


def test_conform_without_a_model_or_with_two_says_so(tmp_path):
    for given in ([], ["one", "--config", tmp_path / "config.json"]):
        told = run("check-model", *given)
        assert (told.code, told.out) == (2, "")
        assert told.err == "headroles: give either a model or --config CONFIG.json, from which a tiny model is made\n"
    told = run("check-model", "--config", tmp_path / "none.json")
    assert told.code == 2
    assert told.err.startswith(f"headroles: could not read the config '{tmp_path / 'none.json'}': ")
    assert told.err.count("\n") == 1


def test_families_is_a_command_that_writes_its_table_into_a_readme(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{architecture_table.START}\nold\n{architecture_table.END}\nafter\n")
    told = run("architectures", "--only", "olmo2,mamba,vit", "--output", tmp_path / "made", "--readme", readme)
    assert told.code == 0
    assert "3 architectures, checks that hold: 25 yes, 0 no, 16 refused, 4 not asked" in told.out
    found = frame.load_table(tmp_path / "made/families.parquet")
    assert list(found.index.unique("name")) == ["olmo2", "mamba", "vit"]
    assert (
        readme.read_text()
        == f"before\n{architecture_table.START}\n{architecture_table.written(found)}\n{architecture_table.END}\nafter\n"
    )
    assert "| olmo2 | yes | yes | yes | yes | refused | no head can be cut out of " in readme.read_text()
    told = run("architectures", "--only", "vit,unicorn", "--output", tmp_path / "other")
    assert told.code == 2
    assert told.err.startswith("headroles: not in the zoo: unicorn; it has afmoe, ")
    readme.write_text("nothing")
    told = run("architectures", "--only", "mamba", "--output", tmp_path / "made", "--readme", readme)
    assert told.err == (
        f"headroles: {readme} has no place for the table: put {architecture_table.START!r} and {architecture_table.END!r} where it shall stand\n"
    )


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_readme_has_the_table_that_is_kept():
    kept = frame.load_table(TABLE)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert (
        text.split(architecture_table.START)[1].split(architecture_table.END)[0]
        == f"\n{architecture_table.written(kept)}\n"
    )
    assert (TABLE.with_suffix(".md")).read_text(encoding="utf-8") == architecture_table.written(kept) + "\n"


def test_the_table_is_of_the_whole_zoo_and_of_many_types():
    kept = frame.load_table(TABLE)
    assert list(kept.index.unique("name")) == list(dict(architectures._listed()))
    assert set(kept.index.unique("law")) == set(CHECKS)
    assert kept["architecture"].nunique() >= 200
    attending = kept[kept["holds"] == "yes"].index.unique("name")
    assert len(attending) >= 200


# one of each way to attend: fused maps, one module for all layers, shared key-value heads, relative biases, a cache,
# pictures, a refusal, none at all; `headroles architectures` puts the laws to all
REPRESENTATIVE = ["bert", "albert", "gpt2", "llama, grouped", "t5", "vit", "olmo2", "mamba"]
DELICATE = ["mobilebert", "qwen2_moe", "qwen3_next", "zaya", "deepseek_v2"]  # routers, wide numbers, latents


def same(name):
    """Whether the suite answers of an architecture what the kept table says."""
    kept, now = frame.load_table(TABLE), architectures.architectures([name])
    differ = now["holds"][now["holds"] != kept["holds"].loc[now.index]]
    assert differ.to_dict() == {}
    assert set(now.index.unique("name")) == {name}


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_an_architecture_answers_as_the_table_says(name):
    same(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # architectures warn of themselves, as of weights of no elements
@pytest.mark.parametrize("name", DELICATE)
def test_a_delicate_architecture_answers_as_the_table_says(name):
    same(name)


@pytest.mark.parametrize(("noise", "holds"), [(1e-6, "yes"), (1e-2, "not asked")])
def test_what_is_loaded_may_be_off_by_a_rounding_and_no_more(noise, holds, monkeypatch):
    """Weights that were loaded lie elsewhere in memory: products may be added in another order."""
    own = cutting._again
    monkeypatch.setattr(cutting, "_again", lambda case, model: own(case, model) * (1 + noise))
    monkeypatch.setattr("headroles.testing.runner.LAWS", {"cut": CHECKS["cut"]})
    assert hr.check_model(architectures.build("llama"))["holds"].to_dict() == {"cut": holds}
