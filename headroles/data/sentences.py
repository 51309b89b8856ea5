"""Sentences: with words and tree, as token ids, with answers, in chats; and rows of tables as sentences (no torch)."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import pandas as pd

from headroles.data.speech import Sound, Times, timed

Span = tuple[int, int]
Turn = tuple[str, str]  # role and text of a turn of a chat
ASSISTANT = "assistant"
LABELS = ("label", "gold_label", "Quality", "is_duplicate")  # the label columns of GLUE
WORDS, WORD_LABELS = ("tokens",), ("ner_tags", "labels")
TEXTS: list[tuple[str, ...]] = [("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2")]
TEXTS += [("#1 String", "#2 String"), ("question", "sentence"), ("sentence",)]  # QNLI has a question and a sentence
FIELDS = ("sentence_good", "sentence_bad")  # of minimal pairs, in BLiMP
TRANSLATION, MESSAGES = ("translation",), ("messages",)
ANSWERED = (("prompt", "completion"), ("text", "answer"))
AUDIO = "audio"
SPOKEN = tuple((AUDIO, transcript) for transcript in ("text", "sentence", "transcription"))
RENAMED = ", or name them text, prompt and completion, messages or tokens"
LABELLED_WORDS = [(*WORDS, column) for column in WORD_LABELS]
SHAPES: list[tuple[str, ...]] = [*SPOKEN, TRANSLATION, FIELDS, MESSAGES, *ANSWERED]
SHAPES += [*LABELLED_WORDS, *TEXTS, ("text",), WORDS]
TREE = ("spans", "heads", "relations")  # columns of a tree, written by `to_dataset`
NO_NAME = re.compile(r"(LABEL_)?\d+")  # names of classes that say no more than their numbers
RELATIONS = ("nsubj", "obj", "amod", "advmod")  # Voita et al. 2019, in Universal Dependencies' names

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, optionally with tree, translation, label and second text.

    Args:
        text: The text.
        spans: First character and end of each word in `text`; None for a word that is not a substring of the text
            (German "zum" = "zu" + "dem").
        heads: Index of the head of each word, -1 for the root. Empty: no tree.
        relations: Dependency relation of each word to its head, in Universal Dependencies' names.
        target: The translation.
        label: The class, by name or number; several with commas between; or a value on a scale.
        second: The second text of a sentence pair (MRPC, RTE, QNLI, MNLI).

    Raises:
        ValueError: If a tree has not one head and one relation per word.
    """

    text: str
    spans: tuple[Span | None, ...] = ()
    heads: tuple[int, ...] = ()
    relations: tuple[str, ...] = ()
    target: Sentence | None = None
    label: str | None = None
    second: str | None = None

    def __post_init__(self) -> None:
        if self.label is not None and not isinstance(self.label, str):  # a number, as data sets have them
            object.__setattr__(self, "label", str(self.label))
        if not len(self.heads) == len(self.relations) or (self.heads and len(self.heads) != len(self.spans)):
            raise ValueError(
                f"malformed tree of {self.text!r}: got {len(self.spans)} words, {len(self.heads)} heads, "
                f"{len(self.relations)} relations; expected one head and one relation per word"
            )

    @property
    def has_tree(self) -> bool:
        """Whether the sentence carries a dependency tree."""
        return bool(self.heads)


@dataclass(frozen=True, slots=True)
class Tokens(Sentence):
    """A sentence given as token `ids`, so that no tokenizer changes them."""

    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Linked(Sentence):
    """A sentence with its translation, and which of their words translate each other.

    Args:
        links: Indices from 0, in `spans`, of a source word and a target word that translate each other; without a
            translation, of two words of the text, such as those of both halves of a text that `Corpus.joined` makes.

    Raises:
        ValueError: If a link is beyond the words, or does not lead to a later word of the same text.
    """

    links: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        Sentence.__post_init__(self)
        sizes = len(self.spans), len((self.target or self).spans)
        for link in self.links:
            if not all(0 <= place < size for place, size in zip(link, sizes, strict=True)):
                other = self.text if self.target is None else self.target.text
                raise ValueError(
                    f"link {link[0]}-{link[1]} is beyond the {sizes[0]} words of {self.text!r} and the {sizes[1]} "
                    f"words of {other!r}"
                )
            if self.target is None and link[0] >= link[1]:
                raise ValueError(f"link {link[0]}-{link[1]} of {self.text!r} must lead to a later word of the text")


@dataclass(frozen=True, slots=True)
class Speech(Linked):
    """A transcript with its sound: its source is frames of sound, its target the transcript, each word with its time.

    Args:
        sound: The sound.
        times: Seconds at which each word of `spans` begins and ends; None where they are not known.
        language: Language of the transcript, as Whisper names it; by default that of the tokenizer.
        task: "transcribe", or "translate" into English; by default as the tokenizer says.
    """

    sound: Sound | None = None
    times: tuple[Times | None, ...] = ()
    language: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Tagged(Sentence):
    """A sentence with a label of each word.

    Args:
        labels: The class of each word, by name or number.

    Raises:
        ValueError: If there is not one label per word.
    """

    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Sentence.__post_init__(self)
        if self.spans and len(self.labels) != len(self.spans):
            raise ValueError(
                f"sentence {self.text!r} must have a label for each of its {len(self.spans)} words, got "
                f"{len(self.labels)}"
            )


@dataclass(frozen=True, slots=True)
class Prompt(Sentence):
    """A sentence with its answer, `target`, which a language model reads after it as one text.

    Args:
        answer_only: Whether the answer alone has a loss; if not, the text has one too.
    """

    answer_only: bool = True

    @property
    def answer(self) -> str | None:
        """The answer; None if the model is to write it."""
        return self.second if self.target is None else self.target.text


@dataclass(frozen=True, slots=True)
class Chat(Prompt):
    """A prompt that is read as a chat, in the tokenizer's chat template.

    Its text is the user's turn, `target` or `second` the assistant's answer.

    Args:
        before: Role and text of the turns before, such as a system prompt.
        role: Role of the turn of the text.
    """

    before: tuple[Turn, ...] = ()
    role: str = "user"

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Role and text of all turns, the answer last."""
        turns = (*self.before, (self.role, self.text))
        return turns if self.answer is None else (*turns, (ASSISTANT, self.answer))


def as_chat(sentence: Sentence) -> Chat:
    """Return a sentence as a chat, with the same tree, target, label and second text; a chat as it is."""
    if isinstance(sentence, Chat):
        return sentence
    kind = Prompt if isinstance(sentence, Prompt) else Sentence
    return Chat(**{field.name: getattr(sentence, field.name) for field in fields(kind)})


class ClassName(str):
    """The name of a class of a data set, and its number there: its place in the `names` of all classes."""

    number: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, number: int, names: tuple[str, ...]) -> Self:
        """Return the name of a number."""
        made = cls(names[number])
        made.number, made.names = number, names
        return made

    def __repr__(self) -> str:
        return f"{str(self)!r} ({self.number})"


GOOD, BAD = "good", "bad"  # labels of the two sentences of a minimal pair, which follow each other


def pair(good: str, bad: str, source: str | None = None) -> tuple[Sentence, Sentence]:
    """Return the two sentences of a minimal pair; with a `source` they are its translations."""
    if source is None:
        return Sentence(good, label=GOOD), Sentence(bad, label=BAD)
    first, second = (Sentence(source, target=Sentence(text), label=label) for text, label in ((good, GOOD), (bad, BAD)))
    return first, second


# --- rows of tables ---------------------------------------------------------------------------------------------------


def sentences(
    rows: Iterable[Mapping[str, Any]],
    names: Collection[str],
    where: str,
    columns: tuple[str, ...] = (),
    label: str | None = None,
    features: Mapping[str, Any] | None = None,
) -> Iterator[Sentence | None]:
    """Return the sentences of rows with columns of these `names`, None for one with a blank text.

    Every reader of rows calls this. Text is in `columns`, one or two; by default in the first of `SHAPES` that the rows
    have. Languages of translations are ordered as in `where` (`de-en`). Classes have the names that `features` of
    Hugging Face's `datasets` give them. A list of words is a text, with spaces between them.

    Raises:
        ValueError: If the rows have no such column, or none of a known name.
    """
    texts = columns or next((known for known in SHAPES if {*known} <= {*names}), ())
    of_words, texts = texts[:1] == WORDS, texts[:1] if texts in LABELLED_WORDS else texts
    label = label or next((name for name in ((*WORD_LABELS, *LABELS) if of_words else LABELS) if name in names), None)
    if not texts or not {*texts, *([label] if label else [])} <= {*names}:
        fault = f"no column {', '.join(columns)}" if columns else "no known text column"
        hint = f"give text= and label= from these{'' if columns else RENAMED}"
        raise ValueError(f"dataset {where} has {fault}: got {', '.join(names)}; {hint}")
    feature = (features or {}).get(label or "")
    known = tuple(getattr(getattr(feature, "feature", feature), "names", None) or ())
    classes = () if all(map(NO_NAME.fullmatch, known)) else known
    rows = map(_with_none, rows)
    if not columns and texts == FIELDS:
        return pairs_of(({name: "" if cell is None else cell for name, cell in row.items()} for row in rows), where)
    if not columns and texts == TRANSLATION:
        return map(_or_none, _translations(rows, where))
    return (
        _or_none(_sentence(row, f"{where}, row {i}", _label(row.get(label or ""), classes), texts, named=bool(columns)))
        for i, row in enumerate(rows, 1)
    )


def complete(entries: Iterable[Sentence | None], where: str, limit: int | None = None) -> Iterator[Sentence]:
    """Yield the entries that are not None, at most `limit`, and log how many are left out; ValueError without any."""
    size = kept = 0
    answers: Counter[bool] = Counter()  # of chats: without one they have another loss
    for entry in entries:
        size += 1
        if entry is not None:
            kept += 1
            answers.update([entry.answer is not None] if isinstance(entry, Prompt) else [])
            yield entry
        if kept == limit:
            break
    if not kept:
        raise ValueError(f"{where}: all {size} entries have a blank text; expected at least one sentence")
    if kept < size:
        log.warning("%s: left out %d of %d entries, which have a blank text", where, size - kept, size)
    if len(answers) == 2:
        message = "%s: %d of %d texts have no answer, so that their loss is of the text itself; try answer_only=False"
        log.warning(message, where, answers[False], answers.total())


def pairs_of(rows: Iterable[Mapping[str, object]], where: str) -> Iterator[Sentence | None]:
    """Yield both sentences of each row with `sentence_good`, `sentence_bad` (and `source`); None if one is blank."""
    for number, row in enumerate(rows, 1):
        names = (*FIELDS, *(["source"] if "source" in row else []))
        texts = [text.strip() for text in _texts(row, names, f"{where}, pair {number}")]
        yield from pair(*texts) if all(texts) else [None]


def _sentence(row: Mapping[str, Any], where: str, label: Any, texts: tuple[str, ...], *, named: bool) -> Sentence:
    """Return the sentence of a row, with texts in columns of a known shape, or in columns that the user has named."""
    if not named and texts == MESSAGES:
        return _with_tree(_chat(row.get(texts[0]), where, label), row)
    if AUDIO in texts:
        return _spoken(row, where, label, texts)
    if not named and texts in ANSWERED:
        if not any(isinstance(row.get(name), str) for name in texts):
            return _chat([*_listed(row.get(texts[0]), where), *_listed(row.get(texts[1]), where)], where, label)
        prompt, answer = _texts(row, texts, where)
        if texts != ANSWERED[0]:  # a completion says which spaces are between
            prompt, answer = prompt.strip(), answer.strip()
        return _with_tree(Prompt(prompt, target=Sentence(answer), label=label), row)
    if pd.api.types.is_list_like(row.get(texts[0])):
        sentence = _of_words([*map(str, row[texts[0]])], label)
    else:
        cells = ["" if row.get(name) is None else str(row[name]).strip() for name in texts]
        sentence = Sentence(cells[0], label=label, second=(*cells, None)[1])
    return sentence if named else _with_tree(sentence, row)


def _spoken(row: Mapping[str, Any], where: str, label: Any, texts: tuple[str, ...]) -> Speech:
    """Return the sentence of a sound and its transcript, and of its words if the row has their times."""
    text = str(row.get(texts[-1]) or "").strip()
    table = Path(where.rpartition(", row ")[0])
    sound = Sound.of(row.get(AUDIO), where, table if table.is_dir() else table.parent)
    given = row.get("words")
    spans, times = timed([] if given is None else list(given), text, sound.seconds, where)
    links = tuple((word, word) for word, known in enumerate(times) if known)
    target, language, task = Sentence(text, spans), row.get("language"), row.get("task")
    return Speech(text, spans, (), (), target, label, None, links, sound, times, language, task)


def _of_words(words: Sequence[str], label: Any) -> Sentence:
    """Return the sentence of words, with the label of each, or with its own."""
    ends = [*accumulate(len(word) + 1 for word in words)]
    spans = tuple((end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True))
    if isinstance(label, tuple):
        return Tagged(" ".join(words), spans, labels=label)
    return Sentence(" ".join(words), spans, label=label)


def _chat(messages: object, where: str, label: str | None) -> Chat:
    """Return the chat of messages with role and content; the answer is the last turn, if it is the assistant's."""
    rows = (message if isinstance(message, Mapping) else {} for message in _listed(messages, where))
    turns = [(role, text) for row in rows for role, text in [_texts(row, ("role", "content"), where)]]
    answer = turns.pop()[1] if len(turns) > 1 and turns[-1][0] == ASSISTANT else None
    role, text = turns.pop() if turns else ("user", "")
    target = None if answer is None else Sentence(answer)
    return Chat(text, target=target, label=label, before=tuple(turns), role=role)


def _listed(messages: object, where: str) -> list[object]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise ValueError(f"{where} must have texts, or messages with role and content in a list, got {messages!r:.60}")
    return [*messages]


def _texts(row: Mapping[str, object], names: Sequence[str], where: str) -> list[str]:
    """Return the texts of a row; ValueError if one is not text."""
    if wrong := [name for name in names if not isinstance(row.get(name), str)]:
        raise ValueError(f"{where} must have texts in {' and '.join(names)}, got {wrong[0]}={row.get(wrong[0])!r}")
    return [str(row[name]) for name in names]


def _label(mark: Any, classes: tuple[str, ...]) -> Any:
    """Return a label, or those of words, by name if the classes have names; class -1 means no label."""
    if pd.api.types.is_list_like(mark):
        return tuple(_label(item, classes) for item in mark)
    if isinstance(mark, float) and mark.is_integer():
        mark = int(mark)  # a column with missing values has floats
    if classes and mark is not None and not isinstance(mark, str):
        return ClassName.of(int(mark), classes) if mark >= 0 else None
    return None if mark is None else str(mark)


def _translations(rows: Iterable[Mapping[str, Any]], source: str) -> Iterator[Sentence]:
    """Yield sentence pairs in the order of the languages in the name, or in the first row."""
    languages: tuple[str, ...] = ()
    pairs = re.findall(r"\b([a-z]{2,3})-([a-z]{2,3})\b", source)
    for row in rows:
        translation = row["translation"]
        languages = languages or next((pair for pair in pairs if {*pair} == {*translation}), tuple(translation))
        text, target = (translation[language] or "" for language in languages)
        yield _with_tree(Sentence(text.strip(), target=Sentence(target.strip())), row)


def _with_tree(sentence: Sentence, row: Mapping[str, Any]) -> Sentence:
    """Return a sentence with the tree that `to_dataset` wrote into its row, if any."""
    cells = [row.get(name) for name in TREE]
    if any(cell is None or not len(cell) for cell in cells):  # arrays, if a data frame was read from a file
        return sentence
    spans = tuple(None if span is None else (int(span[0]), int(span[1])) for span in row["spans"])
    heads, relations = tuple(map(int, row["heads"])), tuple(map(str, row["relations"]))
    return replace(sentence, spans=spans, heads=heads, relations=relations)


def _with_none(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with None for missing values, which data frames have as NaN, NaT or NA."""
    return {name: None if pd.api.types.is_scalar(value) and pd.isna(value) else value for name, value in row.items()}


def _or_none(sentence: Sentence) -> Sentence | None:
    """Return None for a sentence with a blank text or side."""
    sides = [sentence.text, sentence.second] + ([] if sentence.target is None else [sentence.target.text])
    return sentence if all(side is None or side.strip() for side in sides) else None
