"""Slow tokenizers have their pieces aligned with words."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import transformers
from helpers.letters import tokenizer
from helpers.messages import whole

import headroles as hr
from headroles.data.corpus import Sentence
from headroles.models.tokens.alignment import NO_WORD, pieces, word_of


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
    unknown = 0
    for one in found:
        surfaces = [piece.surface for piece in model.encode(one.sentence.text, return_type="proto").pieces]
        assert "".join(surfaces) == one.sentence.text
        truth = [*word_of(one.sentence, list(pairwise(accumulate(map(len, surfaces), initial=0)))), NO_WORD]
        # of the pieces of "..." for … SentencePiece gives the last alone a surface
        told = [number for number, surface in enumerate(surfaces) if surface.strip()]
        assert [one.words[number] for number in told] == [truth[number] for number in told]
        assert len(one.words) == len(truth) == len(one.ids)
        unknown += one.ids.count(tokenizer.unk_token_id)
    assert unknown > 20


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
    owned = [word for word in found.words if word != NO_WORD]
    assert owned == sorted(owned)
    assert {*owned} == {*range(len(words))}


def test_a_slow_tokenizer_that_rewrites_what_it_reads(tmp_path):
    rules = tmp_path / "rules.tsv"
    rules.write_text("201C\t22\n")  # “ to "
    tokenizer, _ = _marian(tmp_path, ['"the" dog', *TEXTS], normalization_rule_tsv=str(rules))
    message = (
        "MarianTokenizer gives no character offsets, and its piece '\"' was not found in 'the “dog' from character 3 "
        "on; expected tokens that spell the text; try scores that need no words: all but syntax"
    )
    with pytest.raises(ValueError, match=whole(message)):
        pieces(tokenizer, [Sentence("the “dog", spans=((0, 3), (4, 8)))])
    assert pieces(tokenizer, [Sentence("the “dog")])[0].words  # who asks for no words is not told


@pytest.mark.parametrize("accent", ["\u00e9", "e\u0301"])
def test_a_slow_tokenizer_that_strips_accents(tmp_path, accent):
    (tmp_path / "words").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "caf", "##e", "noir", "un"])
    )
    tokenizer = transformers.ProphetNetTokenizer(str(tmp_path / "words"))
    text = f"un caf{accent} noir"
    spans = tuple(match.span() for match in re.finditer(r"\S+", text))
    (tokens,) = pieces(tokenizer, [Sentence(text, spans)])
    assert tokenizer.convert_ids_to_tokens(tokens.ids)[:4] == ["un", "caf", "##e", "noir"]
    assert tokens.words == [0, 1, 1, 2, NO_WORD]


def test_a_slow_tokenizer_reads_sentence_pairs(tmp_path):
    tokenizer, _ = _marian(tmp_path, TEXTS)
    sentence = Sentence("the dog", spans=((0, 3), (4, 7)), second="the cat")
    (found,) = pieces(tokenizer, [sentence])
    (first,) = pieces(tokenizer, [Sentence(sentence.text, sentence.spans)])
    alone = first.words[:-1]
    assert found.words == alone + [NO_WORD] * (len(found.ids) - len(alone))


@pytest.mark.parametrize("missing", [None, ""])
def test_texts_and_pairs_of_texts_are_not_mixed(missing):
    """All would be read as single texts, and nobody would know."""
    sentences = [Sentence("one", second="two"), Sentence("one", second=missing)]
    message = (
        "texts and pairs of texts are mixed: got 1 of 2 sentences without a second text; expected all or none; try "
        "each part alone"
    )
    with pytest.raises(ValueError, match=whole(message)):
        pieces(tokenizer(), sentences)
