"""Translators of many languages read and write those that are asked for, and codes of languages are no words."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from helpers import letters, multilingual, zoo
from helpers.close import close
from helpers.commands import run
from helpers.letters import batches_of
from helpers.multilingual import CODES, NLLB, model_of, tokenizer_of

import headroles as hr
from headroles.models import identity
from headroles.models.tokens import languages


@pytest.fixture(
    scope="module",
    params=["Nllb", "MBart", *(pytest.param(name, marks=pytest.mark.slow) for name in ("MBart50", "M2M100", "PLBart"))],
)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def sentencepieces(tmp_path_factory):
    place = tmp_path_factory.mktemp("pieces")
    multilingual.sentencepieces(place)
    return place


@pytest.fixture
def tokenizer(family, sentencepieces):
    return tokenizer_of(family, sentencepieces)


def test_languages_are_set_as_the_tokenizer_itself_does(family, tokenizer, sentencepieces):
    source, target = CODES[family]
    languages.assign(tokenizer, source, target)
    assert languages.named(tokenizer) == {"source_lang": tokenizer.src_lang, "target_lang": target}
    assert not languages.is_unset(tokenizer)
    read = [tokenizer(text="cat dog")["input_ids"], tokenizer(text_target="cat dog")["input_ids"]]
    other = tokenizer_of(family, sentencepieces)
    other.src_lang, other.tgt_lang = source, target
    assert read == [other(text="cat dog")["input_ids"], other(text_target="cat dog")["input_ids"]]
    assert read[0] != read[1]
    assert [text.strip() for text in languages.decoded(tokenizer, torch.tensor(read[1:]))] == [
        "cat dog"
    ]  # without codes


def test_a_target_language_that_the_tokenizer_took_from_the_source_is_none(family, tokenizer):
    assert languages.is_unset(tokenizer)
    if family != "M2M100":  # which raises KeyError
        tokenizer(text_target="cat")
    assert languages.is_unset(tokenizer)
    assert "target_lang" not in languages.named(tokenizer)
    languages.assign(tokenizer, CODES[family][0], CODES[family][0])
    assert not languages.is_unset(tokenizer)  # said in so many words


def test_a_language_that_a_tokenizer_lacks_is_refused(family, tokenizer):
    source, target = CODES[family]
    with pytest.raises(ValueError, match=r"has no language 'klingon'; expected one of its \d+ codes, such as \w+, \w+"):
        languages.assign(tokenizer, source, "klingon")
    with pytest.raises(ValueError, match=f"no source language: got target_lang='{target}' alone; expected both"):
        languages.assign(tokenizer, None, target)
    assert languages.is_unset(tokenizer)


def test_a_tokenizer_of_two_languages_has_none_to_choose():
    assert languages.named(letters.tokenizer()) == languages.named(None) == {}


PAIRS = [("cat sees big dog", "dog hears bird"), ("small bird", "red tree hears small house big cat"), ("house", "cat")]
FIRST = ("MBart", "PLBart")  # where the code of the language is the first token of the decoder, not the second


@pytest.fixture(scope="module")
def folder(family, sentencepieces, tmp_path_factory):
    place = tmp_path_factory.mktemp(family)
    tokenizer = tokenizer_of(family, sentencepieces)
    codes = [*getattr(tokenizer, "lang_code_to_id", {}).values()]  # not all are in the vocabulary
    size = max(*tokenizer.get_vocab().values(), *codes, 0) + 1
    seldom = [*tokenizer.all_special_ids, *codes, tokenizer.convert_tokens_to_ids("▁")]
    model_of(family, size, seldom).save_pretrained(place)
    tokenizer.save_pretrained(place)
    config = json.loads((place / "tokenizer_config.json").read_text())  # transformers writes its default, English
    (place / "tokenizer_config.json").write_text(json.dumps(config | {"src_lang": None}))
    return place


@pytest.fixture
def loaded(family, folder):
    return hr.load(folder, **dict(zip(("source_lang", "target_lang"), CODES[family], strict=True)))


@pytest.fixture
def plain(family, folder):
    """Model and tokenizer as transformers loads them, and how its documentation lets the family write."""
    languages = dict(zip(("src_lang", "tgt_lang"), CODES[family], strict=True))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **languages)
    code = {"M2M100": "__de__", "PLBart": "__java__"}.get(family, languages["tgt_lang"])
    name = "decoder_start_token_id" if family in FIRST else "forced_bos_token_id"
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    return model, tokenizer, {name: tokenizer.convert_tokens_to_ids(code)}


CORPUS = hr.Corpus("pairs", tuple(hr.Sentence(source, target=hr.Sentence(target)) for source, target in PAIRS))


def written(plain):
    model, tokenizer, begins = plain
    inputs = [tokenizer(source, return_tensors="pt") for source, _ in PAIRS]
    return [model.generate(**row, do_sample=False, num_beams=1, **begins)[0] for row in inputs]


def test_the_loss_is_that_of_the_target_language(loaded, plain):
    model, tokenizer, _ = plain
    total = count = 0.0
    for source, target in PAIRS:
        row = tokenizer(source, text_target=target, return_tensors="pt")
        with torch.no_grad():
            total += float(model(**row).loss) * row["labels"].numel()
        count += row["labels"].numel()
    close(hr.evaluate(*loaded, CORPUS, n_resamples=0)["value"], [total / count])
    (batch,) = batches_of(*loaded, CORPUS)  # whose codes are no content
    assert batch.source.content.sum(1).tolist() == batch.source.attention_mask.sum(1).sub(2).tolist()


def test_own_output_is_written_in_the_target_language(loaded, plain):
    model, tokenizer = loaded
    sources = hr.Corpus.of([source for source, _ in PAIRS])
    found = {}
    for batch in batches_of(model, tokenizer, sources):
        found |= dict(zip(batch.numbers, zip(batch.target.ids, batch.target.attention_mask, strict=True), strict=True))
    for number, expected in enumerate(written(plain)):
        ids, mask = found[number]
        assert ids[mask].tolist() == [i for i in expected.tolist() if i != 2 or i == expected[0]][: int(mask.sum())]


def test_without_a_target_language_a_decoder_is_refused(family, folder):
    model, tokenizer = hr.load(folder)
    words = "no target language, so that its decoder would read .* tgt_lang=None; .*source_lang=.*--target-lang"
    for _ in range(2):
        with pytest.raises(ValueError, match=words):
            hr.evaluate(model, tokenizer, CORPUS, n_resamples=0)
        with pytest.raises(ValueError, match=words):
            hr.score(model, tokenizer, hr.Corpus.of(["cat sees dog"]), ["confidence"], n_resamples=0)
        if family != "M2M100":
            tokenizer(text_target="cat")  # most take the language of the source then, and keep it


def test_an_encoder_needs_no_target_language(folder):
    model, tokenizer = hr.load(folder)
    assert hr.score(model.get_encoder(), tokenizer, CORPUS, ["confidence"], n_resamples=0).notna().all(axis=None)


@pytest.mark.slow
def test_the_languages_are_part_of_what_a_number_is_of(family, folder, loaded, tmp_path):
    source, target = CODES[family]
    model, tokenizer = loaded
    name = identity.identity(model, tokenizer)
    table = hr.evaluate(model, tokenizer, CORPUS, n_resamples=0)
    assert identity.identity(model, tokenizer) == name
    assert f"source_lang:{tokenizer.src_lang}|target_lang:{target}" in hr.provenance(table, "value")
    if tokenizer.is_fast:  # others know the place of their files
        assert identity.identity(*hr.load(hr.save(model, tokenizer, tmp_path / "saved"))) == name
    others = [hr.load(folder, source_lang=target, target_lang=source), hr.load(folder, source_lang=source)]
    others += [hr.load(folder, source_lang=source, target_lang=source)]
    assert len({name, *(identity.identity(*other) for other in others)}) == 4


@pytest.mark.parametrize("family", ["MBart50"], indirect=True)
def test_the_same_language_on_both_sides_is_warned_of(folder, caplog):
    hr.evaluate(*hr.load(folder, source_lang="de_DE", target_lang="de_DE"), CORPUS, n_resamples=0)
    assert "translates from de_DE to the same language" in caplog.text


@pytest.mark.parametrize(("mark", "warned"), [("", True), (">>fra<< ", False)])
def test_sources_without_the_code_that_marian_reads_are_warned_of(mark, warned, sentencepieces, tmp_path, caplog):
    ids = json.loads((sentencepieces / "vocab.json").read_text())
    ids |= {code: len(ids) + i for i, code in enumerate((">>fra<<", ">>spa<<"))}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    pieces = str(sentencepieces / "pieces.model")
    tokenizer = transformers.MarianTokenizer(pieces, pieces, str(tmp_path / "vocab.json"))
    corpus = hr.Corpus("c", tuple(hr.Sentence(mark + source, target=hr.Sentence(target)) for source, target in PAIRS))
    hr.evaluate(zoo.tiny("marian"), tokenizer, corpus, n_resamples=0)
    said = "translates to 2 languages, but no source begins with the code of one, such as >>fra<<"
    assert (said in caplog.text) == warned


@pytest.mark.parametrize("family", ["Nllb"], indirect=True)
def test_the_command_line_sets_languages(folder, loaded, tmp_path):
    files = tmp_path / "text.en", tmp_path / "text.de"
    for file, texts in zip(files, zip(*PAIRS, strict=True), strict=True):
        file.write_text("\n".join(texts))
    words = ("evaluate", folder, *files, "--resamples", 0, "--study", tmp_path / "study")
    end = run(*words)
    assert (end.code, "--source-lang" in end.err) == (2, True)
    assert run(*words, "--source-lang", NLLB[0], "--target-lang", NLLB[1], "--metrics", "loss,bleu-char").code == 0
    kept = hr.load_table(tmp_path / "study" / "evaluation.parquet")["value"]
    close(kept["loss"], hr.evaluate(*loaded, CORPUS, n_resamples=0)["value"].iloc[0])
    assert list(kept.index) == ["loss", "bleu-char"]


@pytest.mark.slow
def test_seamless_reads_the_target_language():
    """Its codes are not those of a class in common with the others, and its targets begin with the end token."""
    words = {word: i for i, word in enumerate(["<pad>", "<unk>", "<s>", "</s>", "▁a", "▁b", "▁c", "▁d"])}
    codes = {"src_lang": "eng", "tgt_lang": "fra", "additional_special_tokens": ["__eng__", "__fra__"]}
    tokenizer = transformers.SeamlessM4TTokenizer(vocab=words, merges=[], **codes)
    sizes = {"hidden_size": 32, "encoder_layers": 1, "decoder_layers": 1, "speech_encoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    config = transformers.SeamlessM4TConfig(vocab_size=16, t2u_vocab_size=16, **sizes, **heads, **special)
    torch.manual_seed(0)
    model = transformers.SeamlessM4TForTextToText(config).eval()
    corpus = hr.Corpus("pairs", tuple(hr.Sentence(a, target=hr.Sentence(b)) for a, b in [("a b c", "b"), ("a", "d c")]))
    total = count = 0
    for sentence in corpus:
        labels = torch.tensor([tokenizer(text_target=sentence.target.text)["input_ids"]])
        assert int(labels[0, 1]) == tokenizer.convert_tokens_to_ids("__fra__")
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([tokenizer(sentence.text)["input_ids"]]), labels=labels).loss
        total, count = total + float(loss) * labels.numel(), count + labels.numel()
    table = hr.evaluate(model, tokenizer, corpus, ["loss"], n_resamples=0)
    assert float(table["value"].iloc[0]) == pytest.approx(total / count, rel=1e-6)
    sources = hr.Corpus.of([sentence.text for sentence in corpus])
    for batch in batches_of(model, tokenizer, sources):
        assert batch.target.ids[:, :2].tolist() == [[3, int(labels[0, 1])]] * len(batch.numbers)
