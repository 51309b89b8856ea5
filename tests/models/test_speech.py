"""Speech as a source: frames with words, padding that is no content, batches equal to single sounds, own loops."""

from __future__ import annotations

import copy
import json
import logging
from itertools import pairwise

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
import transformers
from helpers import spoken, zoo
from helpers.letters import batches_of, corpus, tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

import headroles as hr
from headroles.data.corpus import Sentence
from headroles.models import speech
from headroles.models.head_model import HeadModel
from headroles.models.tokens.alignment import TokenizedSentence
from headroles.patterns.controls import Shift
from headroles.training.examples import collator, examples


def test_frames_inside_the_sound_are_content_and_each_has_its_word(tmp_path):
    model, tokens = spoken.listener()
    for batch in batches_of(model, tokens, spoken.corpus(tmp_path)):
        for row, number in enumerate(batch.numbers):
            seconds, words = spoken.LENGTHS[number], spoken.TEXTS[number].split()
            content, owners = batch.source.content[row].tolist(), batch.source.words[row].tolist()
            assert content == [frame * spoken.STEP < seconds - 1e-9 for frame in range(spoken.FRAMES)]
            for frame, owner in enumerate(owners):
                middle = (frame + 0.5) * spoken.STEP
                expected = int(middle / seconds * len(words)) if middle < seconds else -1
                assert owner == expected or abs(middle * len(words) / seconds % 1 - 0.5) > 0.4, (number, frame)
        assert batch.source.attention_mask.all()


def test_frames_of_a_word_without_times_have_no_word(tmp_path):
    (row, *_) = spoken.rows(tmp_path)
    row["words"][1] |= {"start": None}
    model, tokens = spoken.listener()
    (source,) = HeadModel(model, tokens).encode(spoken.read(tmp_path, [row])).source
    assert source.words == [0] * 7 + [-1] * 6 + [2] * 7 + [-1] * 30


def test_features_are_those_of_the_feature_extractor_and_labels_those_of_the_tokenizer(tmp_path):
    model, tokens = spoken.listener()
    for batch in batches_of(model, tokens, spoken.corpus(tmp_path)):
        for row, number in enumerate(batch.numbers):
            samples = spoken.tone(spoken.LENGTHS[number], pitch=200.0 * (number + 1))
            expected = tokens.feature_extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features[0]
            torch.testing.assert_close(batch.inputs["input_features"][row], expected, atol=1e-2, rtol=0)  # 16 bit
            ids = tokenizer()(spoken.TEXTS[number])["input_ids"]
            assert batch.labels[row].tolist() == ids + [-100] * (len(batch.labels[row]) - len(ids))


def test_batches_of_unequal_lengths_have_the_numbers_of_single_sounds(tmp_path):
    model, tokens = spoken.listener()
    given = spoken.corpus(tmp_path)
    together, apart = (hr.score(model, tokens, given, max_tokens=n, n_resamples=0) for n in (4096, 1))
    assert "links" in together
    values = (torch.tensor(table.to_numpy(float)) for table in (together, apart))
    torch.testing.assert_close(*values, atol=1e-5, rtol=1e-5, equal_nan=True)
    effects = [hr.ablate(model, tokens, given, max_tokens=n, n_resamples=0)["ablation[loss]"] for n in (4096, 1)]
    torch.testing.assert_close(*(torch.tensor(column.to_numpy(float)) for column in effects), atol=1e-5, rtol=0)


def test_a_planted_head_attends_to_the_word_just_read_and_no_other_does(tmp_path):
    model, tokens = spoken.listener(planted=True)
    words = [{"word": word, "start": i / 10, "end": (i + 1) / 10} for i, word in enumerate("abcdefgh")]
    soundfile.write(tmp_path / "a.wav", spoken.tone(0.8), 16_000)
    given = spoken.read(tmp_path, [{"audio": "a.wav", "text": "a b c d e f g h", "words": words}])
    links = hr.score(model, tokens, given, "links", n_resamples=0)["links"]
    assert links["cross", 0, 0] == 1
    assert links.drop(index=("cross", 0, 0)).max() < 0.5


def test_wrong_patterns_of_a_sound_are_half_a_second_away(tmp_path):
    """The next frame is the same sound."""
    model, tokens = spoken.listener()
    given, head, right = spoken.corpus(tmp_path), ("cross", 0, 0), hr.patterns.Alignment("read")
    options = {"heads": [head], "n_resamples": 2}
    (row,) = hr.test_roles(model, tokens, given, {head: [right]}, **options).to_dict("records")
    for name, by in (("earlier", -25), ("later", 25)):
        moved = hr.ablate(model, tokens, given, sets={"it": [head]}, replacement=Shift(right, by), n_resamples=0)
        assert row[f"wrong[{name}]"] == pytest.approx(moved["ablation[loss]"].iloc[0], rel=1e-4)


def test_scores_of_ids_are_blank_for_frames_and_say_why(tmp_path, caplog):
    model, tokens = spoken.listener()
    table = hr.score(model, tokens, spoken.corpus(tmp_path), "rarity", n_resamples=0)
    assert table["rarity"][["enc-self", "cross"]].isna().all()
    assert "rarity of enc-self, cross heads is NaN: frames of sound are not tokens, so none is rare" in caplog.text


def test_the_models_own_output_is_read_where_it_is_asked_for(tmp_path):
    model, tokens = spoken.listener()
    handle = HeadModel(model, tokens)
    given = spoken.corpus(tmp_path)
    batches = list(handle.batches(handle.encode(given, generate=4)))
    for batch in batches:
        written = model.generate(batch.inputs["input_features"], max_new_tokens=4, num_beams=1, do_sample=False)
        assert batch.target.ids[:, 1:].tolist() == written.tolist()
        assert batch.is_generated


def test_text_for_sound_and_sound_for_text_are_refused(tmp_path):
    model, tokens = spoken.listener()
    with pytest.raises(ValueError, match="WhisperForConditionalGeneration reads input_features, got text in corpus"):
        hr.score(model, tokens, corpus(3), n_resamples=0)
    with pytest.raises(ValueError, match="MarianMTModel reads input_ids, got sound .* try a model such as Whisper"):
        hr.score(zoo.tiny("marian"), tokenizer(), spoken.corpus(tmp_path), n_resamples=0)


def test_a_sound_longer_than_the_window_is_refused_with_a_way_to_cut_it(tmp_path):
    model, tokens = spoken.listener()
    soundfile.write(tmp_path / "long.wav", spoken.tone(1.5), 16_000)
    given = spoken.read(tmp_path, [{"audio": "long.wav", "text": "a b"}])
    with pytest.raises(ValueError, match=r"sentence 1 has 1\.5 seconds of sound, and .* reads 1; cut .* ffmpeg -i IN"):
        hr.score(model, tokens, given, n_resamples=0)


def test_without_a_feature_extractor_the_error_says_where_it_comes_from(tmp_path):
    model, _ = spoken.listener()
    with pytest.raises(ValueError, match="no feature extractor of WhisperFor.*; load both with hr.load, or set"):
        hr.score(model, copy.deepcopy(tokenizer()), spoken.corpus(tmp_path), n_resamples=0)


def test_a_saved_model_has_its_feature_extractor(tmp_path):
    model, tokens = spoken.listener()
    hr.save(model, tokens, tmp_path / "saved")
    _, again = hr.load(tmp_path / "saved")
    assert again.feature_extractor.to_dict() == tokens.feature_extractor.to_dict()
    hr.remove_heads(model, [("cross", 0, 1), ("dec-self", 1, 0)])
    hr.save(model, tokens, tmp_path / "smaller")
    smaller, again = hr.load(tmp_path / "smaller")
    given = spoken.corpus(tmp_path)
    losses = [hr.evaluate(*pair, given, "loss")["value"].item() for pair in ((model, tokens), (smaller, again))]
    assert losses[0] == pytest.approx(losses[1])


def test_the_feature_extractor_is_a_part_of_the_identity():
    model, tokens = spoken.listener()
    before = HeadModel(model, tokens).identity
    tokens.feature_extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1, n_fft=512)
    assert HeadModel(model, tokens).identity != before


def multilingual():
    """A model and a tokenizer of two languages; the ids of marks follow those of letters."""
    model, tokens = spoken.listener()
    marks = ["<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>", "<|notimestamps|>"]
    tokens.add_tokens(marks)
    ids = dict(zip(marks, tokens.convert_tokens_to_ids(marks), strict=True))
    config = model.generation_config
    config.is_multilingual, config.no_timestamps_token_id = True, ids["<|notimestamps|>"]
    return model, tokens, [ids[mark] for mark in marks]


def test_language_and_task_are_those_of_the_row_then_of_the_tokenizer_and_have_no_loss(tmp_path):
    model, tokens, (en, de, transcribe, translate, last) = multilingual()
    rows = spoken.rows(tmp_path)
    given = spoken.read(tmp_path, [rows[0] | {"language": "German", "task": "translate"}, rows[1]])
    with pytest.raises(ValueError, match="writes many languages, and no language is set; .*target_lang='en'"):
        HeadModel(model, tokens).encode(given)
    tokens.language = "en"
    made = HeadModel(model, tokens).encode(given)
    start = model.config.decoder_start_token_id
    assert [row.prompt for row in made.source] == [[start, de, translate, last], [start, en, transcribe, last]]
    for batch in HeadModel(model, tokens).batches(made):
        assert (batch.labels[:, :3] == -100).all()
        assert (batch.labels[:, 3] != -100).all()
        assert not batch.target.content[:, :4].any()
        assert batch.prompt.tolist() == batch.target.ids[:, :4].tolist()
    tokens.language = "xx"
    with pytest.raises(ValueError, match=r"has no token <\|xx\|>; try a language such as 'en'"):
        HeadModel(model, tokens).encode(given[1:])


def test_a_tokenizer_with_broken_merges_is_warned_of(caplog):
    made = Tokenizer(models.BPE({"Ġ": 0, "the": 1, "t": 2, "h": 3, "e": 4}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    broken = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
    broken.prefix_tokens = []
    with caplog.at_level(logging.WARNING):
        speech.transcripts([TokenizedSentence([], [], Sentence("the"))], broken, words=False)
    assert "cuts ' the' in two, which no Whisper model does" in caplog.text


def test_heads_are_pruned_by_a_ranking_and_by_gates_that_learn(tmp_path):
    """The trainer's loss is that of `hr.evaluate`: the prompt has none, and the decoder reads it."""
    model, tokens = spoken.listener()
    given = spoken.corpus(tmp_path)
    survival = hr.prune(model, tokens, given, "importance", keep=0.5).iloc[:, 0]
    assert survival.mean() == 0.5
    model, tokens, _ = multilingual()
    tokens.language = "en"
    handle = HeadModel(model, tokens)
    rows = examples(handle, given)
    batch = collator(handle, tokens, rows, seed=0)(rows)
    with torch.no_grad():
        loss = model(**batch).loss.item()
    assert hr.evaluate(model, tokens, given, "loss")["value"].item() == pytest.approx(loss, abs=1e-5)
    hr.train(model, tokens, given, tmp_path / "trained", epochs=1)
    assert hr.evaluate(model, tokens, given, "loss")["value"].item() < loss
    assert model.bfloat16()(**collator(HeadModel(model, tokens), tokens, rows, seed=0)(rows)).loss.isfinite()


def test_examples_of_attention_are_by_word(tmp_path):
    model, tokens = spoken.listener(planted=True)
    given = spoken.corpus(tmp_path)[:1]
    table = hr.attention_examples(model, tokens, given, limit=1)
    own = table[table["kind"] == "enc-self"].iloc[0]
    assert list(own["queries"]) == list(own["keys"]) == ["a", "b", "c"]
    row = table[(table["kind"] == "cross") & (table["layer"] == 0) & (table["head"] == 0)].iloc[0]
    assert list(row["keys"]) == ["a", "b", "c"]
    assert (list(row["widths"]), list(row["loudness"])) == ([7, 6, 7], [1] * 20)
    weights = hr.attention_matrix(model, tokens, given[0], "cross:0:0").to_numpy()
    bounds = [0, 7, 13, 20]  # frames of a third of 0.4 seconds
    expected = [[line[a:b].sum() for a, b in pairwise(bounds)] for line in weights]
    torch.testing.assert_close(torch.tensor(row["weights"]).view(-1, 3), torch.tensor(expected), atol=2e-3, rtol=0)


def test_loudness_is_in_decibels_of_the_loudest_frame(tmp_path):
    wave = np.repeat([0.5, 0.05, 0.0], 320)  # frames of .02 s
    soundfile.write(tmp_path / "0.wav", wave, spoken.RATE, subtype="FLOAT")
    (row,) = spoken.read(tmp_path, [{"audio": "0.wav", "text": "a"}])
    found = speech.loudness(row, spoken.listener()[1].feature_extractor, spoken.FRAMES, 4)
    assert found.tolist() == [1, 0.5, 0, 0]


@pytest.fixture(scope="module")
def real(shared, whisper):
    model, tokens = hr.load(whisper)
    return model, tokens, hr.read(shared / "data" / "speech" / "human.jsonl")[1:4]


@pytest.mark.slow
@pytest.mark.shared
def test_whispers_loss_and_effects_of_heads_are_those_of_a_plain_loop(real, whisper, shared):
    ours, tokens, given = real
    processor = transformers.WhisperProcessor.from_pretrained(whisper)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(whisper).eval()
    rows = [json.loads(line) for line in (shared / "data/speech/human.jsonl").read_text().splitlines()[1:4]]

    def losses():
        out = []
        for row in rows:
            samples, rate = soundfile.read(shared / "data" / "speech" / row["audio"])
            features = processor(samples, sampling_rate=rate, return_tensors="pt").input_features
            body = processor.tokenizer(" " + row["text"], add_special_tokens=False).input_ids
            ids = torch.tensor([[50257, 50362, *body, 50256]])
            with torch.no_grad():
                logits = model(input_features=features, decoder_input_ids=ids[:, :-1]).logits
            out.append(F.cross_entropy(logits[0, 1:], ids[0, 2:], reduction="none"))
        return out

    intact = losses()
    total = torch.cat(intact).mean().item()
    assert hr.evaluate(ours, tokens, given, "loss")["value"].item() == pytest.approx(total, abs=1e-4)
    size = model.config.d_model // model.config.decoder_attention_heads

    def without(_, args):
        states = args[0].clone()
        states[..., 2 * size : 3 * size] = 0
        return (states,)

    hook = model.model.decoder.layers[1].encoder_attn.out_proj.register_forward_pre_hook(without)
    removed = torch.cat(losses()).mean().item()
    hook.remove()
    effect = hr.ablate(ours, tokens, given, sets={"one": "cross:1:2"}, n_resamples=0)["ablation[loss]"].item()
    assert effect == pytest.approx(removed - total, abs=1e-4)


@pytest.mark.slow
@pytest.mark.shared
def test_whispers_attention_is_that_of_eager_attention(real, whisper):
    ours, tokens, given = real
    model = transformers.WhisperForConditionalGeneration.from_pretrained(whisper, attn_implementation="eager").eval()
    batch = batches_of(ours, tokens, given[:1])[0]
    with torch.no_grad():
        output = model(
            input_features=batch.inputs["input_features"],
            decoder_input_ids=batch.inputs["decoder_input_ids"],
            output_attentions=True,
        )
    weights = output.cross_attentions[1][0]  # [heads, query, key]
    content, words = batch.target.content[0], batch.target.words[0]
    keys, owners = batch.source.content[0], batch.source.words[0]
    top = (weights * keys).argmax(-1)
    known = [query for query in range(len(words)) if content[query] and words[query] >= 0]
    hits = [[owners[top[head, query]] == words[query] for query in known] for head in range(len(weights))]
    shown = hr.attention_examples(ours, tokens, given, limit=1, generate=2)
    assert set(shown["written"][shown["kind"] != "enc-self"]) == {2}  # without the prompt
    links = hr.score(ours, tokens, given[:1], "links", n_resamples=0)["links"].xs(("cross", 1))
    assert links.tolist() == pytest.approx([sum(row).item() / len(known) for row in hits])


@pytest.mark.slow
@pytest.mark.shared
def test_word_errors_of_whisper_are_those_of_its_own_pipeline(real, whisper, shared):
    jiwer = pytest.importorskip("jiwer")
    ours, tokens, given = real
    processor = transformers.WhisperProcessor.from_pretrained(whisper)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(whisper).eval()
    rows = [json.loads(line) for line in (shared / "data/speech/human.jsonl").read_text().splitlines()[1:4]]
    normal = EnglishTextNormalizer({})
    pairs = []
    for row in rows:
        samples, rate = soundfile.read(shared / "data" / "speech" / row["audio"])
        features = processor(samples, sampling_rate=rate, return_tensors="pt").input_features
        (text,) = processor.batch_decode(model.generate(features), skip_special_tokens=True)
        pairs.append((normal(row["text"]), normal(text)))
    expected = jiwer.wer(*map(list, zip(*pairs, strict=True)))
    assert hr.evaluate(ours, tokens, given, "wer")["value"].item() == pytest.approx(expected)
