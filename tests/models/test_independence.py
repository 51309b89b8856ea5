"""Texts share a batch only where each has the numbers that it has alone; the right losses are of a plain loop."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
import transformers
from helpers import zoo
from helpers.traces import NAMES
from helpers.worded import of_words

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.models.identity import identity
from headroles.models.independence import _Selections, is_same

WORDS = ["<pad>", "<unk>", *(f"w{number}" for number in range(94))]
SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [1.0, 3.0, 9.0, 20.0], "original_max_position_embeddings": 16}
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, **FACTORS}


PHI = {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
MOBILE = {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16, "num_feedforward_networks": 1}
MODELS = {
    "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES, **PHI)),
    "mobilebert": lambda: transformers.MobileBertForMaskedLM(transformers.MobileBertConfig(**SIZES, **MOBILE)),
    "doge": lambda: hr.tiny_model("doge", keep_window_size=16, pad_token_id=0),
    "deepseek_v32": lambda: hr.tiny_model("deepseek_v32", index_topk=4),
    "llama": lambda: hr.tiny_model("llama"),
}


@cache
def given(name):
    """A model, and texts on both sides of the length at which it switches."""
    model = MODELS[name]()
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in (weight for weight in model.parameters() if weight.ndim > 1):
            weight.normal_(std=0.3)
    drawn = torch.Generator().manual_seed(1)
    lengths = [3, 5, 6, 20, 28, 33]
    texts = [" ".join(f"w{i}" for i in torch.randint(90, (length,), generator=drawn)) for length in lengths]
    return model.eval(), of_words(WORDS, pad_token="<pad>"), texts


def plain(name):
    """The mean loss of all tokens that are predicted, of one text at a time."""
    model, tokenizer, texts = given(name)
    losses = []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        pairs = (logits, ids[0]) if name == "mobilebert" else (logits[:-1], ids[0, 1:])
        losses.append(F.cross_entropy(*pairs, reduction="none"))
    return float(torch.cat(losses).mean())


@pytest.mark.parametrize("name", ["phi3", "doge", "mobilebert"])
def test_loss_is_that_of_each_text_alone(name, caplog):
    model, tokenizer, texts = given(name)
    table = hr.evaluate(model, tokenizer, texts, ["loss"], n_resamples=0)
    assert table["value"].iloc[0] == pytest.approx(plain(name), rel=1e-6)
    assert "texts of equal length are read together" in caplog.text
    assert "|batches:equal-length|" in hr.provenance(table, "value")


def test_partners_are_read_alone():
    """Outputs of an example of another length, past which the factors of rotary positions change."""
    model, tokenizer, _ = given("phi3")
    texts = [" ".join(f"w{(i * 7 + n) % 90}" for i in range(n)) for n in (13, 20, 20)]
    options = {"replacement": "resample", "n_resamples": 0}
    found, expected = (
        hr.ablate(model, tokenizer, texts, **options, max_tokens=tokens).iloc[:, 0] for tokens in (4096, 1)
    )
    assert float((found - expected).abs().max()) <= 1e-5


def test_texts_that_the_model_continues_are_read_alone():
    model, tokenizer, _ = given("phi3")
    model.generation_config.eos_token_id = None
    texts = [" ".join(f"w{(i * 7 + n) % 90}" for i in range(n)) for n in (4, 11, 13)]
    options = {"generate": 8, "n_resamples": 0}
    (found, expected) = (
        hr.score(model, tokenizer, texts, ["confidence"], **options, max_tokens=tokens)["confidence"]
        for tokens in (4096, 1)
    )
    assert float((found - expected).abs().max()) <= 1e-5


def test_what_a_forward_writes_into_a_buffer_is_put_back():
    """Factors of rotary positions of the last text: with others, kept results would be those of another model."""
    model, tokenizer, texts = given("phi3")
    with torch.no_grad():
        model(input_ids=torch.arange(4)[None])
    before = identity(model, tokenizer)
    hr.evaluate(model, tokenizer, texts[-1:], ["loss"], n_resamples=0)
    assert identity(model, tokenizer) == before


def test_selected_keys_are_those_of_each_text_alone():
    """Ties among the keys that an indexer selects are broken by their number: also where heads are masked."""
    model, tokenizer, texts = given("deepseek_v32")
    (found, expected) = (
        hr.ablate(model, tokenizer, texts, n_resamples=0, max_tokens=tokens).iloc[:, 0] for tokens in (4096, 1)
    )
    assert float((found - expected).abs().max()) <= 1e-5
    assert float(expected.abs().max()) > 0.1


def test_it_is_measured_once_for_the_lengths_between(monkeypatch):
    model, tokenizer, texts = given("llama")
    table = hr.evaluate(model, tokenizer, texts, ["loss"], n_resamples=0)
    assert table["value"].iloc[0] == pytest.approx(plain("llama"), rel=1e-6)
    assert "batches:" not in hr.provenance(table, "value")
    monkeypatch.setattr("headroles.models.independence._measured", None)
    assert HeadModel(model, tokenizer).encode(hr.Corpus.of(texts[1:5])).together == "any"
    with pytest.raises(TypeError):
        HeadModel(model, tokenizer).encode(hr.Corpus.of([*texts, "w1 " * 40]))


# what they do depends on the length of a text, or on texts beside it
SWITCHING = ["deepseek_v32", "hy_v4", "doge", "mobilebert", "big_bird", "bigbird_pegasus", "paligemma", "longrope"]
LENGTHS = [1, 3, 6, 7, 14, 20, 33, 36]


def of_zoo(name):
    if name in zoo.ZOO:
        return zoo.tiny(name)
    factors = {key: value * 2 for key, value in FACTORS.items() if key != "original_max_position_embeddings"}
    return hr.tiny_model("phi3", rope_parameters=LONG_ROPE | factors) if name == "longrope" else hr.tiny_model(name)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("whisper", "vit")] + SWITCHING)
def test_the_states_of_a_text_are_those_that_it_has_alone(name):
    """Of the whole zoo, and of those known to switch; lengths are on both sides of what the config says."""
    model, tokenizer = of_zoo(name), of_words(WORDS[:60], pad_token="<pad>")
    if "t5" in name:  # unscaled logits amplify rounding
        model = model.double()
    handle, drawn = HeadModel(model, tokenizer), torch.Generator().manual_seed(1)
    texts = [" ".join(WORDS[i] for i in torch.randint(4, 60, (size,), generator=drawn)) for size in LENGTHS]
    pairs = zip(texts, [texts[-1], *texts[:-1]], strict=True)
    encoded = handle.encode(hr.Corpus("c", tuple(hr.Sentence(a, target=hr.Sentence(b)) for a, b in pairs)))
    seen = []
    with torch.no_grad(), handle.evaluating():
        for batch in handle.batches(encoded):
            seen += batch.numbers
            for row, number in enumerate(batch.numbers):
                found, inputs = handle.forward_body(batch)[0][row], ids(tokenizer, texts[number])
                if batch.target is not None:
                    shown = ids(tokenizer, texts[number - 1])["input_ids"]
                    inputs["decoder_input_ids"] = torch.cat([batch.target.ids[row, :1][None], shown[:, :-1]], 1)
                expected = handle.body(**inputs, use_cache=False)[0][0]
                assert float((found[: len(expected)] - expected).abs().max()) <= 1e-4 * float(expected.abs().max())
    assert sorted(seen) == [*range(len(LENGTHS))]


def ids(tokenizer, text):
    return {"input_ids": torch.tensor([tokenizer(text)["input_ids"]])}


def test_numbers_are_the_same_but_for_rounding():
    values = torch.tensor([1.0, -2.0])
    assert is_same(values + 1e-4, values)
    assert not is_same(values + 3e-4, values)
    assert not is_same(values[:1], values)
    assert is_same(values[:0], values[:0])


def test_block_sparse_attention_stays():
    """BigBird attends in full to short texts, and would stay so: other numbers for long ones ever after."""
    options = {
        "attention_type": "block_sparse",
        "max_position_embeddings": 400,
        "block_size": 4,
        "num_random_blocks": 2,
    }
    ids = {"bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 5}
    config = transformers.BigBirdConfig(**SIZES | options | ids)
    torch.manual_seed(0)
    model, tokenizer = transformers.BigBirdForMaskedLM(config).eval(), of_words(WORDS, pad_token="<pad>")
    long, short = " ".join(WORDS[2:] * 2), "w1 w2 w3"
    inputs = {"input_ids": torch.tensor([tokenizer(long)["input_ids"]])}

    def outputs():
        with torch.no_grad():
            output = model(**inputs, output_attentions=True)
        length = inputs["input_ids"].shape[1]
        return output.logits, torch.stack([one[0, :, :length, :length] for one in output.attentions])

    logits, attentions = outputs()
    assert [site.name for site in hr.attention_sites(model)] == [
        f"bert.encoder.layer.{i}.attention.self" for i in (0, 1)
    ]
    hr.evaluate(model, tokenizer, [short], ["loss"], n_resamples=0)
    scores = hr.score(model, tokenizer, [long], ["confidence"], n_resamples=0)["confidence"]
    expected = attentions.amax(-1).mean(-1).flatten()
    torch.testing.assert_close(torch.tensor(scores.to_numpy()).float(), expected, rtol=1e-5, atol=0)
    assert torch.equal(outputs()[0], logits)
    with pytest.raises(ValueError, match="got other modules for texts of 3 tokens"):
        hr.score(model, tokenizer, [short], ["confidence"], n_resamples=0)
    assert torch.equal(outputs()[0], logits)


def test_selections_are_seen_however_they_are_called():
    values = torch.rand(3, 5)
    calls = [
        lambda: torch.topk(values, 2), lambda: torch.topk(input=values, k=2, dim=0), lambda: values.sort(0),
        lambda: values.topk(5), lambda: torch.argsort(values, dim=1),
    ]  # fmt: skip
    for call, sizes in zip(calls, [{5}, {3}, {3}, set(), {5}], strict=True):
        with _Selections() as seen:
            call()
        assert seen.sizes == sizes
