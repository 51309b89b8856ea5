"""Chats: the template's tokens are special by their place, and the texts keep their words, scores and losses."""

from __future__ import annotations

import re
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.close import close
from helpers.commands import run
from helpers.letters import corpus, tokenizer
from helpers.messages import whole

import headroles as hr
from headroles.ablation.evaluation import evaluate
from headroles.data.corpus import Chat, Corpus, Sentence, as_chat
from headroles.models.tokens import chat
from headroles.models.tokens.alignment import NO_WORD, pieces

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
    "no answer": (Sentence("user be kind"), None),
    "pair": (Sentence("user be kind", second="kind user"), "kind user"),
    "target": (Sentence("be", target=Sentence("assistant")), "assistant"),
    "stripped": (Sentence("  be kind \n"), None),
}


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
    assert f"|chat:{chat.named(in_chats(), chats())['chat']}|" in hr.provenance(table, "confidence")


def test_losses_are_those_of_the_texts_alone():
    model = model_of()
    found = evaluate(model, in_chats(), chats(), ["loss"], n_resamples=0)
    losses = [values[mask[1:]] for _, mask, _, values in read_alone(model, in_chats(), chats())]
    close(found.loc["loss", "value"], np.concatenate(losses).mean())


def test_a_chat_is_another_corpus_and_what_the_template_writes_is_in_its_provenance():
    plain, as_chats = Corpus.of(["a b"]), Corpus.of(["a b"], chat=True)
    assert (plain.chat, as_chats.chat, as_chats[:1].chat, as_chats.sample(1).chat) == (False, True, True, True)
    assert plain.hash != as_chats.hash
    assert chat.named(in_chats(), plain) == {}
    other = chat.named(in_chats(TEMPLATE.replace("kind", "rude")), as_chats)
    assert other["chat"] != chat.named(in_chats(), as_chats)["chat"]


def test_a_tokenizer_without_a_template_is_refused_before_the_work(tmp_path):
    message = (
        "TokenizersBackend has no chat template: got a corpus that was read with chat=True (--chat); expected the "
        "tokenizer of a model that was trained on chats; try without it"
    ).replace("TokenizersBackend", type(tokenizer()).__name__)
    texts = Corpus.of(["a b"], chat=True)
    for study in (None, tmp_path):
        with pytest.raises(ValueError, match=whole(message)):
            hr.score(model_of(), tokenizer("$A"), texts, ["confidence"], study=study)


def test_a_template_that_changes_a_text_is_refused():
    upper = in_chats(TEMPLATE.replace("| trim", "| upper"))
    with pytest.raises(ValueError, match="changes its texts: got .*; expected each text once, as it is; try without"):
        pieces(upper, [Chat("a b")])
    twice = in_chats(TEMPLATE.replace("| trim }}", "| trim }} {{ message['content'] }}"))
    with pytest.raises(ValueError, match="expected each text once"):
        pieces(twice, [Chat("a b")])


def test_an_encoder_decoder_and_a_corpus_of_some_chats_are_refused():
    with pytest.raises(ValueError, match="for models that read and write one text: got Marian"):
        hr.score(zoo.tiny("marian"), in_chats(), Corpus.of(["a b"], chat=True), ["confidence"])
    with pytest.raises(ValueError, match="some texts are chats: got 1 of 2 sentences; expected all or none"):
        pieces(in_chats(), [Chat("a"), Sentence("b")])


@pytest.mark.slow
def test_the_command_line_reads_chats(tmp_path):
    text, study = tmp_path / "text.txt", tmp_path / "study"
    text.write_text("a b c\nd e\n")
    hr.save(model_of(), in_chats(), tmp_path / "model")
    done = run("score", tmp_path / "model", text, "--chat", "--scores", "confidence", "--study", study)
    assert done.code == 0, done.err
    expected = hr.score(model_of(), in_chats(), hr.read(text, chat=True), ["confidence"])
    close(hr.load_table(study / "heads.parquet")["confidence"], expected["confidence"])
