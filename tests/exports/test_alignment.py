"""Alignment heads: warping and smoothing as in transformers, errors by a plain loop, a planted head is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
import torch
import transformers
from helpers import spoken
from helpers.letters import batches_of
from transformers.models.whisper import generation_whisper

import headroles as hr
from headroles.exports import alignment
from headroles.exports.alignment import smoothed, warped
from headroles.models.head_model import HeadModel
from headroles.tables import frame

SIZES = (8, 5, 6, 3)  # words of a tenth of a second


def dictated(folder, *, late=0.0):
    """Words of a tenth of a second each, which their times put `late` seconds later."""
    rows = []
    for number, size in enumerate(SIZES):
        soundfile.write(folder / f"{number}.wav", spoken.tone(size / 10 + late), spoken.RATE)
        letters, starts = "abcdefgh"[:size], [place / 10 + late for place in range(size)]
        words = [{"word": w, "start": start, "end": start + 0.1} for w, start in zip(letters, starts, strict=True)]
        rows.append({"audio": f"{number}.wav", "text": " ".join(letters), "words": words})
    return spoken.read(folder, rows)


@pytest.mark.parametrize("shape", [(3, 7, 20), (2, 1, 5), (2, 9, 4), (4, 30, 200)])
def test_warping_is_that_of_transformers_also_where_steps_cost_the_same(shape):
    matrices = np.random.default_rng(0).normal(size=shape).round(1)
    for matrix, starts in zip(matrices, warped(matrices), strict=True):
        tokens, frames = generation_whisper._dynamic_time_warping(-matrix)
        jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
        assert starts.tolist() == frames[jumps].tolist()


@pytest.mark.parametrize("frames", [3, 40])
def test_smoothing_is_that_of_transformers(frames):
    weights = torch.rand(3, 9, frames, generator=torch.Generator().manual_seed(0))
    deviation = torch.std(weights, dim=-2, keepdim=True, unbiased=False)
    normal = (weights - weights.mean(-2, keepdim=True)) / deviation
    torch.testing.assert_close(smoothed(weights, 7), generation_whisper._median_filter(normal, 7))


def test_a_planted_head_is_chosen_and_without_error(tmp_path, caplog):
    model, tokens = spoken.listener(planted=True)
    found = hr.alignment_heads(model, tokens, dictated(tmp_path), at="read", n_resamples=20)
    heads, sets = found
    assert heads.index[heads["chosen"] == 1].tolist() == [("cross", 0, 0)]
    assert heads["error"]["cross", 0, 0] < 1e-9
    assert heads["order"]["cross", 0, 0] == 1
    assert sets.loc["chosen", ["heads", "error", "within[50]", "difference"]].tolist() == pytest.approx([1, 0, 1, 0])
    assert sets.loc["chosen", ["within[50].low", "within[50].high"]].tolist() == pytest.approx([0.025 ** (1 / 2), 1])
    assert sets.loc["all", "error"] > 50
    assert sets.loc["all", "difference"] == pytest.approx(-sets.loc["all", "error"])
    assert (sets["error.low"] <= sets["error"]).all()
    assert "published" not in sets.index
    assert "heads are chosen on 14 words, and other words may choose other heads; try 300" in caplog.text


def test_a_published_list_is_a_set_and_a_number_of_heads_is_kept(tmp_path):
    model, tokens = spoken.listener(planted=True)
    model.generation_config.alignment_heads = [[10, 1], [0, 0], [1, 3], [0, 4]]
    heads, sets = hr.alignment_heads(model, tokens, dictated(tmp_path), at="read", size=3, n_resamples=0)
    assert heads.index[heads["published"] == 1].tolist() == [("cross", 0, 0), ("cross", 1, 3)]
    assert heads["chosen"].sum() == 3
    assert sorted(heads["order"].dropna()) == [1, 2, 3]
    assert sets["heads"].to_dict() == {"chosen": 3, "published": 2, "upper half": 4, "all": 8, "random": 3}
    hr.remove_heads(model, [("cross", 0, 1), ("cross", 1, 3)])
    assert model.generation_config.alignment_heads == [[0, 0]]
    again = hr.alignment_heads(model, tokens, dictated(tmp_path), at="read", n_resamples=0).heads
    assert again.index[again["published"] == 1].tolist() == [("cross", 0, 0)]


def test_other_sound_measures_what_all_of_the_corpus_chooses(tmp_path):
    """Each half chooses the heads for the other: the errors of a set are then those that the halves measure."""
    model, tokens = spoken.listener(planted=True)
    given, options = dictated(tmp_path), {"at": "read", "size": 2, "n_resamples": 0}
    drawn = np.random.default_rng(0).permutation(len(given))
    first, second = (hr.Corpus("half", tuple(given[i] for i in sorted(half.tolist()))) for half in np.split(drawn, 2))
    halves = hr.alignment_heads(model, tokens, given, **options)
    split = hr.alignment_heads(model, tokens, first, held_out=second, **options)
    assert split.heads["order"].equals(halves.heads["order"])
    assert split.sets.loc[["chosen", "all"], "error"].tolist() == halves.sets.loc[["chosen", "all"], "error"].tolist()
    by_one = hr.alignment_heads(model, tokens, first, held_out=second[:1], at="read", size=2).sets
    assert by_one[["error.low", "within[50].low"]].isna().all(axis=None)  # one utterance does not vary
    assert f"held_out:{second.hash}|" in split.sets.attrs["signatures"]["error"]


def test_a_constant_shift_is_taken_from_the_times(tmp_path):
    """The planted head is early by the silence before the words: but for the first, which starts with the sound."""
    model, tokens = spoken.listener(planted=True)
    given = dictated(tmp_path, late=0.04)
    plain, shifted = (
        hr.alignment_heads(model, tokens, given, at="read", size=1, shift=shift, n_resamples=0).sets for shift in (0, 1)
    )
    assert plain.loc["chosen", "error"] == pytest.approx(40, abs=1)
    assert shifted.loc["chosen", "error"] < 5


@torch.no_grad()
@pytest.mark.parametrize("at", ["read", "next"])
def test_errors_of_all_heads_are_those_of_a_plain_loop(tmp_path, at):
    """Every utterance is measured by one half or the other: the error of each head by itself is that of the first."""
    model, tokens = spoken.listener()
    given = dictated(tmp_path)
    table = hr.alignment_heads(model, tokens, given, at=at, size=1, n_resamples=0).heads
    drawn = np.random.default_rng(0).permutation(len(given))[:2]
    model.set_attn_implementation("eager")
    errors = [[] for _ in range(8)]
    for number in sorted(drawn):
        (batch,) = batches_of(model, tokens, given[int(number) : int(number) + 1])
        inputs = {name: value for name, value in batch.inputs.items() if name != "decoder_attention_mask"}
        if at == "next":
            end = torch.tensor([[tokens.eos_token_id]])
            inputs["decoder_input_ids"] = torch.cat((inputs["decoder_input_ids"], end), dim=1)
        output = model(**inputs, output_attentions=True)
        size, frames = SIZES[number], 5 * SIZES[number]
        rows = slice(1, size + 1) if at == "read" else slice(0, size + 1)
        for place, weights in enumerate(torch.cat(output.cross_attentions, dim=1)[0]):
            part = weights[None, None, rows, :frames] if at == "read" else weights[None, None, :, :frames]
            part = part if at == "read" else part / part.sum(-1, keepdim=True)
            part = (part - part.mean(-2, keepdim=True)) / part.std(-2, keepdim=True, unbiased=False)
            matrix = generation_whisper._median_filter(part, 7)[0, 0].double().numpy()
            matrix = matrix if at == "read" else matrix[rows]
            texts, times = generation_whisper._dynamic_time_warping(-matrix)
            starts = times[np.pad(np.diff(texts), (1, 0), constant_values=1).astype(bool)][:size]
            errors[place] += [abs(20 * start - 100 * word) for word, start in enumerate(starts)]
    assert table["error"].tolist() == pytest.approx([np.mean(row) for row in errors])


@pytest.mark.slow
def test_times_are_those_of_ctranslate2_with_the_exported_list(tmp_path, shared, whisper):
    """faster-whisper and WhisperX get their times from it."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    model, tokenizer = hr.load(whisper)
    texts = hr.read(shared / "data/speech/human.jsonl", limit=2)
    handle = HeadModel.of(model, tokenizer)
    extractor = transformers.AutoFeatureExtractor.from_pretrained(whisper)
    start = [tokenizer.convert_tokens_to_ids("<|startoftranscript|>")]
    ctranslate2.converters.TransformersConverter(str(whisper)).convert(tmp_path / "ct2")
    index = handle.index[handle.index.get_level_values("kind") == "cross"]
    chosen = [index.get_loc(("cross", layer, head)) for layer, head in ((0, 4), (3, 1))]
    table = frame.table({"chosen": np.isin(np.arange(24), chosen).astype(float)}, index, "")
    hr.export_heads(table, tmp_path / "ct2", form="ctranslate2")
    other = ctranslate2.models.Whisper(str(tmp_path / "ct2"), intra_threads=1)
    for utterance in alignment._read(handle, texts, "next"):
        text = texts[utterance.number]
        sound = extractor(text.sound.samples(16_000), sampling_rate=16_000, return_tensors="np").input_features
        ids = tokenizer(" " + text.text.strip(), add_special_tokens=False).input_ids
        frames = [2 * utterance.weights.shape[2]]
        (found,) = other.align(ctranslate2.StorageView.from_array(sound), start, [ids], frames)
        firsts = {}
        for token, place in found.alignments:
            firsts.setdefault(token, place)
        ours = alignment.warped(utterance.weights[chosen].mean(0, dtype=np.float64)[None])[0]
        assert [*firsts.values()] == ours.tolist()


def test_without_times_of_words_the_error_says_what_to_give(tmp_path):
    model, tokens = spoken.listener()
    rows = [{name: row[name] for name in ("audio", "text")} for row in spoken.rows(tmp_path)]
    with pytest.raises(ValueError, match="needs word links|must have two or more utterances with the times of words"):
        hr.alignment_heads(model, tokens, spoken.read(tmp_path, rows))


@pytest.mark.slow
@pytest.mark.shared
def test_whispers_published_heads_are_worse_than_chosen_ones(whisper, shared):
    model, tokens = hr.load(whisper)
    corpus = hr.read(shared / "data" / "speech" / "human.jsonl")[:12]
    heads, sets = hr.alignment_heads(model, tokens, corpus, n_resamples=100)
    assert heads["published"].sum() == 8
    assert sets.loc["chosen", "error"] < sets.loc["published", "error"]
    assert sets.loc["published", "difference.high"] < 0


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.shared
def test_times_of_tokens_at_the_step_that_has_read_them_are_those_that_transformers_gives(whisper, shared):
    processor = transformers.WhisperProcessor.from_pretrained(whisper)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(whisper, attn_implementation="eager").eval()
    samples, rate = soundfile.read(shared / "data" / "speech" / "LJ001-0002.flac")
    read = processor(samples, sampling_rate=rate, return_tensors="pt", return_attention_mask=True)
    given = model.generate(read.input_features, attention_mask=read.attention_mask, return_token_timestamps=True)
    ids, expected = given["sequences"], given["token_timestamps"][0].tolist()
    prompt = torch.tensor([[50257, 50362]])
    inputs = {"input_features": read.input_features, "decoder_input_ids": torch.cat([prompt, ids], dim=1)}
    attention = model(**inputs, output_attentions=True).cross_attentions
    heads = torch.stack([attention[layer][0, head] for layer, head in model.generation_config.alignment_heads])
    frames = int(read.attention_mask.sum()) // 2
    smooth = smoothed(heads[:, 2 : 2 + ids.shape[1], :frames], 7).mean(0).double().numpy()
    assert (0.02 * warped(smooth[None])[0]).tolist() == pytest.approx(expected, abs=1e-6)
