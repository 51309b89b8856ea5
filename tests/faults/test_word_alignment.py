"""Words without tokens of their own: only their pairs leave syntax; bytes and characters belong to their words."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
import transformers
from helpers.commands import run
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models.tokens.alignment import NO_WORD, pieces
from headroles.tables.frame import fields

LINES = ['"I saw the dog," she said.', 'He said, "a cat sat on the old fish."', "the dogs saw the house."] * 5
TREES = """
1\t"\t_\t_\t_\t_\t3\tpunct\t_\tSpaceAfter=No
2\tshe\t_\t_\t_\t_\t3\tnsubj\t_\t_
3\tsaw\t_\t_\t_\t_\t0\troot\t_\t_
4\tthe\t_\t_\t_\t_\t6\tdet\t_\t_
5\told\t_\t_\t_\t_\t6\tamod\t_\t_
6\tdog\t_\t_\t_\t_\t3\tobj\t_\tSpaceAfter=No
7\t,\t_\t_\t_\t_\t3\tpunct\t_\tSpaceAfter=No
8\t"\t_\t_\t_\t_\t3\tpunct\t_\t_
9\the\t_\t_\t_\t_\t10\tnsubj\t_\t_
10\tsaid\t_\t_\t_\t_\t3\tparataxis\t_\tSpaceAfter=No
11\t.\t_\t_\t_\t_\t3\tpunct\t_\t_

1\tshe\t_\t_\t_\t_\t2\tnsubj\t_\t_
2\tsat\t_\t_\t_\t_\t0\troot\t_\t_
3-4\tzum\t_\t_\t_\t_\t_\t_\t_\t_
3\tzu\t_\t_\t_\t_\t6\tcase\t_\t_
4\tdem\t_\t_\t_\t_\t6\tamod\t_\t_
5\told\t_\t_\t_\t_\t6\tamod\t_\t_
6\tdog\t_\t_\t_\t_\t2\tobj\t_\t_

1\tcats\t_\t_\t_\t_\t2\tobj\t_\t_
2\tsaw\t_\t_\t_\t_\t0\troot\t_\t_
3\tdogs\t_\t_\t_\t_\t2\tobj\t_\t_

"""


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE, which merges punctuation of two words."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, show_progress=False, initial_alphabet=alphabet, special_tokens=["<s>"]
    )
    inner.train_from_iterator(LINES, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<s>")


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "trees.conllu").write_text(TREES.lstrip("\n"))
    return hr.read(tmp_path / "trees.conllu")


def model_for(name, tokenizer):
    return hr.tiny_model(name, vocab_size=len(tokenizer), max_position_embeddings=64)


def expected(model, tokenizer, corpus, relation, way):
    """Query words, those right by each head and at the best offset: a plain loop over characters."""
    right, words, offsets = torch.zeros(model.config.num_hidden_layers, model.config.num_attention_heads), 0, {}
    for sentence in corpus:
        made = tokenizer(sentence.text, return_offsets_mapping=True, return_tensors="pt")
        spans = made.pop("offset_mapping")[0].tolist()
        held = [
            [w for c in range(*span) for w, own in enumerate(sentence.spans) if own and own[0] <= c < own[1]]
            for span in spans
        ]
        number = len(sentence.spans)
        lost = set(range(number)) - {words[0] for words in held if words}
        lost |= {word for words in held if lost & {*words} for word in words}
        tokens = {w: [t for t, words in enumerate(held) if words and words[0] == w] for w in range(number)}
        known = [w for w in range(number) if w not in lost]
        partners = {}
        for dependent, (head, name) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if name == relation and {dependent, head} <= {*known}:
                query, key = (dependent, head) if way == "dep>head" else (head, dependent)
                if model.config.model_type != "llama" or key < query:
                    partners.setdefault(query, set()).add(key)
        with torch.no_grad():
            attention = model(**made, output_attentions=True).attentions
        for query, keys in partners.items():
            words += 1
            for key in keys:
                offsets[key - query] = offsets.get(key - query, 0) + 1
            for layer, weights in enumerate(attention):
                for head, of_head in enumerate(weights[0]):
                    sums = [float(of_head[tokens[query]][:, tokens[word]].sum()) for word in known]
                    right[layer, head] += known[max(range(len(known)), key=sums.__getitem__)] in keys
    return words, right.flatten(), max(offsets.values(), default=0)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_only_pairs_with_a_word_without_a_token_leave_syntax(name, tokenizer, corpus):
    model = model_for(name, tokenizer)
    table = hr.score(model, tokenizer, corpus, ["syntax"], n_resamples=0)
    model.set_attn_implementation("eager")
    counted = 0
    for relation in ("nsubj", "obj", "amod"):
        for way in ("dep>head", "head>dep"):
            column = f"syntax[{relation} {way}]"
            words, right, at_offset = expected(model, tokenizer, corpus, relation, way)
            assert (table[f"{column}.words"] == words).all(), column
            if words:
                assert table[column].tolist() == (right.double() / words).tolist(), column
                assert (table[f"{column}.baseline"] == at_offset / words).all(), column
            counted += words
    assert counted > 5


def test_two_words_that_share_a_token_have_none(tokenizer, corpus):
    found = pieces(tokenizer, corpus.sentences)
    assert '."' in tokenizer.get_vocab() or ',"' in tokenizer.get_vocab()
    quoted, contracted, plain = ({*row.words} - {NO_WORD} for row in found)
    assert quoted == {*range(11)} - {6, 7}  # , and "
    assert contracted == {0, 1, 4, 5}  # zum = zu + dem
    assert plain == {0, 1, 2}


def test_a_word_loses_also_its_other_tokens_where_it_shares_one():
    inner = Tokenizer(models.WordLevel({"<unk>": 0, "do": 1, "g.": 2, "a": 3}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("do", behavior="isolated")]
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", pad_token="<unk>")
    (row,) = pieces(fast, [Sentence("a dog.", ((0, 1), (2, 5), (5, 6)))])
    assert fast.convert_ids_to_tokens(row.ids) == ["a", "do", "g."]
    assert row.words == [0, NO_WORD, NO_WORD]


def test_words_without_tokens_are_counted_in_provenance_and_on_screen(tokenizer, corpus, caplog):
    with caplog.at_level(logging.WARNING, logger="headroles"):
        table = hr.score(model_for("bert", tokenizer), tokenizer, corpus, ["syntax"], n_resamples=0)
    found = dict(fields(hr.provenance(table, table.columns[0])))
    assert {name: found[name] for name in ("unaligned", "words", "dependencies", "uncounted")} == {
        "unaligned": "4", "words": "20", "dependencies": "17", "uncounted": "4",
    }  # fmt: skip
    assert "syntax: 4 of 20 words have no tokens of their own, so 4 of 17 dependencies are not counted" in caplog.text


def test_a_corpus_of_words_that_share_tokens_is_not_called_measured(tokenizer, tmp_path):
    model = model_for("bert", tokenizer)
    hr.save(model, tokenizer, tmp_path / "model")
    rows = ["1\tde\t_\t_\t_\t_\t2\tobj\t_\t_", "2\tle\t_\t_\t_\t_\t0\troot\t_\t_"]
    block = "\n".join(["1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_", *rows]) + "\n\n"
    (tmp_path / "du.conllu").write_text(block * 3)
    said = run(
        "score", tmp_path / "model", tmp_path / "du.conllu", "--scores", "syntax,confidence", "--study", tmp_path / "s"
    )
    assert said.code == 0, said.err
    words = " ".join(said.out.split())
    assert "measured: confidence of 8 heads" in words
    assert "syntax: 6 of 6 words have no tokens of their own, so 3 of 3 dependencies are not counted" in words
    assert "left out: syntax of enc-self heads is NaN: no sentence of the corpus has anything to measure it on" in words


TEXT = "Zoë sees 漢字, the ﬁsh."
SPANS = ((0, 3), (4, 8), (9, 11), (11, 12), (13, 16), (17, 20), (20, 21))


@pytest.mark.parametrize("name", ["ByT5Tokenizer", "PerceiverTokenizer", "CanineTokenizer"])
def test_bytes_and_characters_belong_to_their_words(name):
    slow = getattr(transformers, name)()
    (row,) = pieces(slow, [Sentence(TEXT, SPANS)])
    word = {c: number for number, span in enumerate(SPANS) for c in range(*span)}
    size = [len(character.encode()) if name != "CanineTokenizer" else 1 for character in TEXT]
    own = [word.get(c, NO_WORD) for c, count in enumerate(size) for _ in range(count)]
    special = slow(TEXT, return_special_tokens_mask=True)["special_tokens_mask"]
    assert [owner for owner, is_special in zip(row.words, special, strict=True) if not is_special] == own
    assert all(owner == NO_WORD for owner, is_special in zip(row.words, special, strict=True) if is_special)


def test_syntax_of_a_model_that_reads_bytes():
    slow = transformers.ByT5Tokenizer()
    config = transformers.T5Config(vocab_size=384, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    torch.manual_seed(0)
    model = transformers.T5EncoderModel(config).eval()
    tree = Sentence(TEXT, SPANS, (1, -1, 1, 1, 5, 1, 1), ("nsubj", "root", "obj", "punct", "det", "obj", "punct"))
    table = hr.score(model, slow, Corpus("bytes", (tree, replace(tree, text=tree.text))), ["syntax"], n_resamples=0)
    assert (table["syntax[nsubj dep>head].words"] == 2).all()
    assert (table["syntax[obj dep>head].words"] == 4).all()
