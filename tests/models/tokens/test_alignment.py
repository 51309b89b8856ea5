"""Tokens belong to the words that spell them, in texts and in chats, also those of slow tokenizers."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from helpers.close import close
from helpers.letters import corpus, tokenizer
from helpers.messages import whole
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import headroles as hr
from headroles.ablation.effects import evaluate
from headroles.data.corpus import Chat, Corpus, Prompt, Sentence, as_chat
from headroles.models.tokens import alignment
from headroles.models.tokens.alignment import NO_WORD, pieces, word_of
from headroles.tables.frame import fields


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
    treebank = hr.read(shared / f"data/ud/pud/{language}_pud-ud-test.conllu.gz", limit=400)
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


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """A slow tokenizer of a few words."""
    return _marian(tmp_path_factory.mktemp("marian"), TEXTS)[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [("the 😀 dog", ["the", "😀", "dog"]), ("the 😀 漢字 dog 😀", ["the", "😀", "漢字", "dog", "😀"]),
     ("😀the dog", ["😀", "the", "dog"]), ("the dog😀", ["the", "dog", "😀"]), ("the ﬁ dog", ["the", "ﬁ", "dog"]),
     ("😀", ["😀"]), ("the\u3000dog", ["the", "dog"])]
)  # fmt: skip
def test_unknown_and_rewritten_letters_belong_to_their_words(marian, text, words):
    ends, spans = 0, []
    for word in words:
        start = text.index(word, ends)
        spans.append((start, ends := start + len(word)))
    (found,) = pieces(marian, [Sentence(text, spans=tuple(spans))])
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


def test_a_slow_tokenizer_reads_sentence_pairs(marian):
    sentence = Sentence("the dog", spans=((0, 3), (4, 7)), second="the cat")
    (found,) = pieces(marian, [sentence])
    (first,) = pieces(marian, [Sentence(sentence.text, sentence.spans)])
    alone = first.words[:-1]
    assert found.words == alone + [NO_WORD] * (len(found.ids) - len(alone))


TEMPLATE = """<s>system be kind to the user</s>\
{% for message in messages %}<s>{{ message['role'] }}
{{ message['content'] | trim }}</s>{% endfor %}\
{% if add_generation_prompt %}<s>assistant
{% endif %}"""
BEFORE = "<s>system be kind to the user</s><s>user "


def in_chats(template=TEMPLATE):
    tokens = deepcopy(tokenizer("<s> $A </s>"))  # the beginning token is not added to the template's
    tokens.chat_template = template
    return tokens


def size(text):
    """The number of tokens: one for each letter and each special token."""
    return len(re.findall(r"</?s>|[a-z]", text))


def turns(text, answer=None):
    """A chat as the model reads it, and which of its tokens are of a text."""
    rest = "</s><s>assistant " if answer is None else f"</s><s>assistant {answer}</s>"
    after = size("</s><s>assistant ")
    mask = [False] * size(BEFORE) + [True] * size(text) + [False] * after
    return BEFORE + text + rest, mask + ([] if answer is None else [True] * size(answer) + [False])


CASES = {
    "no answer": (Sentence("user be kind"), None), "pair": (Sentence("user be kind", second="kind user"), "kind user"),
    "target": (Sentence("be", target=Sentence("assistant")), "assistant"), "stripped": (Sentence("  be kind \n"), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_the_template_and_only_the_texts_are_no_template(name):
    sentence, answer = CASES[name]
    text, mask = turns(sentence.text, answer)
    (row,) = pieces(in_chats(), [as_chat(sentence)])
    assert row.ids == tokenizer("$A")(text)["input_ids"]
    assert row.in_text == mask


def test_words_of_the_users_turn_are_aligned():
    chats = [as_chat(sentence) for sentence in corpus(8)]
    for row, sentence in zip(pieces(in_chats(), chats), chats, strict=True):
        assert sentence.has_tree
        letters = [word for word, (start, end) in enumerate(sentence.spans) for _ in range(start, end)]
        rest = len(row) - size(BEFORE) - len(letters)
        assert row.words == [NO_WORD] * size(BEFORE) + letters + [NO_WORD] * rest


def test_spaces_that_a_template_strips_do_not_move_words():
    (row,) = pieces(in_chats(), [Chat("  ab c ", ((2, 4), (5, 6)))])
    assert row.words[size(BEFORE) : size(BEFORE) + 3] == [0, 0, 1]


def test_a_space_that_a_template_writes_after_a_stripped_text_is_none_of_its_own():
    chats = in_chats("{% for one in messages %}<s>{{ one.content | trim }} </s>{% endfor %}")
    (row,) = pieces(chats, [Chat("be kind ")])
    assert row.in_text == [False, *[True] * size("be kind"), False]


def model_of():
    return hr.tiny_model("llama", num_key_value_heads=2, max_position_embeddings=128)


def read_alone(model, tokens, sentences):
    """Of each chat: ids, mask of the texts, attention [layer, head, query, key] and loss of each token, in a loop."""
    eager = deepcopy(model)
    eager.set_attn_implementation("eager")
    for sentence in sentences:
        text, mask = turns(sentence.text, sentence.second)
        ids = torch.tensor([tokens(text, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            output = eager(ids, output_attentions=True)
        losses = F.cross_entropy(output.logits[0, :-1], ids[0, 1:], reduction="none")
        yield ids[0], np.array(mask), np.stack([layer[0].numpy() for layer in output.attentions]), losses.numpy()


def chats():
    pairs = zip(corpus(6, translated=False), corpus(14, translated=False)[8:], strict=True)
    return Corpus("chats", tuple(Chat(one.text, second=other.text) for one, other in pairs))


def test_scores_are_those_of_a_plain_loop_in_which_the_template_is_special():
    model = model_of()
    table = hr.score(model, in_chats(), chats(), ["confidence", "sink", "position"], n_resamples=0, max_tokens=300)
    largest, previous, special, content, pairs = 0.0, 0.0, 0.0, 0, 0
    for _, mask, attention, _ in read_alone(model, in_chats(), chats()):
        on_text = (attention * mask)[:, :, mask]  # [layer, head, content query, key]
        places = np.flatnonzero(mask)
        has_previous = np.append(False, mask[:-1])[mask]
        largest = largest + on_text.max(-1).sum(-1)
        previous = previous + ((on_text.argmax(-1) == places - 1) & has_previous).sum(-1)
        special = special + (attention * ~mask)[:, :, mask].sum((-1, -2))
        content, pairs = content + mask.sum(), pairs + has_previous.sum()
    close(table["confidence"], largest.flatten() / content)
    close(table["position[-1]"], previous.flatten() / pairs)
    close(table["sink[special]"], special.flatten() / content)
    assert f"|chat:{alignment.chat_digest(in_chats(), chats())['chat']}|" in hr.provenance(table, "confidence")


@pytest.mark.parametrize("answer_only", [True, False])
def test_losses_are_those_of_the_answers_or_of_all_texts(answer_only):
    model, losses = model_of(), []
    given = Corpus.of(chats(), answer_only=answer_only)
    for sentence, (_, mask, _, values) in zip(given, read_alone(model, in_chats(), given), strict=True):
        wanted = mask[1:].copy()
        wanted[: size(BEFORE + sentence.text) * answer_only] = False
        losses.append(values[wanted])
    found = evaluate(model, in_chats(), given, ["loss"], n_resamples=0)
    close(found.loc["loss", "value"], np.concatenate(losses).mean())


TURNS = {"text": "kind", "target": Sentence("be"), "before": (("system", "user"), ("user", "be"), ("assistant", "be"))}


@pytest.mark.parametrize("is_answered", [True, False])
def test_every_turn_of_a_chat_is_known_and_the_last_one_of_the_assistant_is_the_answer(is_answered):
    chat = Chat(**TURNS | {"spans": ((0, 2), (2, 4))} | ({} if is_answered else {"target": None}))
    head, user, end = "<s>system be kind to the user</s><s>system ", "</s><s>user ", "</s><s>assistant "
    parts = [(head, "user"), (user, "be"), (end, "be"), (user, "kind"), *([(end, "be")] if is_answered else [])]
    in_text = [is_text for before, text in parts for is_text in [False] * size(before) + [True] * size(text)]
    rest = "</s>" if is_answered else end
    (row,) = pieces(in_chats(), [chat])
    assert row.ids == tokenizer("$A")("".join(before + text for before, text in parts) + rest)["input_ids"]
    assert row.in_text == row.counted == in_text + [False] * size(rest)
    at = len(row) - size(rest) - 2 if is_answered else None
    assert row.learned == ([place in (at, at and at + 1) for place in range(len(row))] if is_answered else row.counted)
    assert [word for word in row.words if word != NO_WORD] == [0, 0, 1, 1]
    assert row.words.index(0) == sum(size(before + text) for before, text in parts[:3]) + size(user)


@pytest.mark.parametrize("slow", [False, True])
def test_a_prompt_and_its_answer_are_one_text(slow, marian):
    tokens = marian if slow else tokenizer("<s> $A </s>")
    prompts = [("the dog", "a cat", " "), ("the ", "cat", ""), ("a", "\ndog", ""), ("the dog sat", "the", " ")]
    rows = pieces(tokens, [Prompt(text, target=Sentence(answer)) for text, answer, _ in prompts])
    for row, (text, answer, between) in zip(rows, prompts, strict=True):
        assert row.ids == tokens(text + between + answer)["input_ids"]
        wanted, size = tokens(answer, add_special_tokens=False)["input_ids"], sum(row.learned)
        wanted = wanted[tokens.convert_ids_to_tokens(wanted[0]) == "▁" :]  # which a slow tokenizer does not place
        start = row.learned.index(True)
        assert row.ids[start : start + size] == wanted
        assert row.learned == [start <= place < start + size for place in range(len(row))]
        assert row.counted is None
    assert pieces(tokens, [Prompt("the dog")])[0].ids == tokens("the dog")["input_ids"]
    if not slow:  # rendered before: neither the beginning nor the end is added
        (row,) = pieces(tokens, [Prompt("<s>the dog", target=Sentence("sat"))])
        assert row.ids == tokens("<s>the dog sat", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [("<s> $A", "<s>a b", "<s> a b"), ("<s> $A </s>", "<s>a b", "<s> a b"), ("<s> $A </s>", "a b</s>", "<s> a b </s>"),
     ("<s> $A </s>", "<s>a</s>", "<s> a </s>"), ("$A </s>", "a</s>", "a </s>"), ("$A", "<s><s>a", "<s> <s> a"),
     ("<s> $A </s>", "a", "<s> a </s>"), ("<s> $A </s>", "", "<s> </s>"), ("<s> $A", "a<s>", "<s> a <s>")],
)  # fmt: skip
def test_special_tokens_that_a_text_has_are_not_added(template, text, expected):
    tokens = tokenizer(template)
    (row,) = pieces(tokens, [Sentence(text, ((text.index("a"), text.index("a") + 1),) if "a" in text else ())])
    assert tokens.convert_ids_to_tokens(row.ids) == expected.split()
    assert [number for number, word in enumerate(row.words) if word == 0] == [
        number for number, token in enumerate(expected.split()) if token == "a"
    ]


def test_special_tokens_that_pairs_and_targets_have_are_not_added(marian):
    bert = hr.load("minilm")[1]
    texts = {"[CLS] a": "b", "a": "b [SEP]", "[CLS] a ": "b [SEP]"}
    for row in pieces(bert, [Sentence(text, second=second) for text, second in texts.items()]):
        assert row.ids == bert("a", "b")["input_ids"]
        assert row.types == bert("a", "b")["token_type_ids"]
    given, plain = (pieces(marian, [Sentence(text)], target=True)[0].ids for text in ("a b</s>", "a b"))
    assert given == plain


def test_a_chat_is_another_corpus_and_what_the_template_writes_is_in_its_provenance():
    plain, as_chats = Corpus.of(["a b"]), Corpus.of(["a b"], chat=True)
    assert (plain.chat, as_chats.chat, as_chats[:1].chat, as_chats.sample(1).chat) == (False, True, True, True)
    assert plain.hash != as_chats.hash
    assert alignment.chat_digest(in_chats(), plain) == {}
    other = alignment.chat_digest(in_chats(TEMPLATE.replace("kind", "rude")), as_chats)
    assert other["chat"] != alignment.chat_digest(in_chats(), as_chats)["chat"]


def test_a_template_that_changes_a_text_is_refused():
    upper = in_chats(TEMPLATE.replace("| trim", "| upper"))
    with pytest.raises(ValueError, match="changes its texts: got .*; expected each text once, as it is; try without"):
        pieces(upper, [Chat("a b")])
    twice = in_chats(TEMPLATE.replace("| trim }}", "| trim }} {{ message['content'] }}"))
    with pytest.raises(ValueError, match="expected each text once"):
        pieces(twice, [Chat("a b")])


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
def bpe():
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
def trees(tmp_path):
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
def test_only_pairs_with_a_word_without_a_token_leave_syntax(name, bpe, trees):
    model = model_for(name, bpe)
    table = hr.score(model, bpe, trees, ["syntax"], n_resamples=0)
    model.set_attn_implementation("eager")
    counted = 0
    for relation in ("nsubj", "obj", "amod"):
        for way in ("dep>head", "head>dep"):
            column = f"syntax[{relation} {way}]"
            words, right, at_offset = expected(model, bpe, trees, relation, way)
            assert (table[f"{column}.words"] == words).all(), column
            if words:
                assert table[column].tolist() == (right.double() / words).tolist(), column
                assert (table[f"{column}.baseline"] == at_offset / words).all(), column
            counted += words
    assert counted > 5


def test_two_words_that_share_a_token_have_none(bpe, trees):
    found = pieces(bpe, trees.sentences)
    assert '."' in bpe.get_vocab() or ',"' in bpe.get_vocab()
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


def test_words_without_tokens_are_counted_in_provenance_and_on_screen(bpe, trees, caplog):
    with caplog.at_level(logging.WARNING, logger="headroles"):
        table = hr.score(model_for("bert", bpe), bpe, trees, ["syntax"], n_resamples=0)
    found = dict(fields(hr.provenance(table, table.columns[0])))
    assert {name: found[name] for name in ("unaligned", "words", "dependencies", "uncounted")} == {
        "unaligned": "4", "words": "20", "dependencies": "17", "uncounted": "4",
    }  # fmt: skip
    assert "syntax: 4 of 20 words have no tokens of their own, so 4 of 17 dependencies are not counted" in caplog.text


ZOE = "Zoë sees 漢字, the ﬁsh."
SPANS = ((0, 3), (4, 8), (9, 11), (11, 12), (13, 16), (17, 20), (20, 21))


@pytest.mark.parametrize(
    "name", ["ByT5Tokenizer", "PerceiverTokenizer", pytest.param("CanineTokenizer", marks=pytest.mark.slow)]
)
def test_bytes_and_characters_belong_to_their_words(name):
    slow = getattr(transformers, name)()
    (row,) = pieces(slow, [Sentence(ZOE, SPANS)])
    word = {c: number for number, span in enumerate(SPANS) for c in range(*span)}
    size = [len(character.encode()) if name != "CanineTokenizer" else 1 for character in ZOE]
    own = [word.get(c, NO_WORD) for c, count in enumerate(size) for _ in range(count)]
    special = slow(ZOE, return_special_tokens_mask=True)["special_tokens_mask"]
    assert [owner for owner, is_special in zip(row.words, special, strict=True) if not is_special] == own
    assert all(owner == NO_WORD for owner, is_special in zip(row.words, special, strict=True) if is_special)
