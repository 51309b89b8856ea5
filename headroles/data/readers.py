"""Files to sentences: CoNLL-U, plain lines, parallel lines and labelled tables (no torch)."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import get_args

from headroles.data.conllu import block
from headroles.data.corpus import TAKEN, Corpus, CorpusLike
from headroles.data.entries import Column, Form, Texts, entries, named_columns, stem
from headroles.data.hf_datasets import gather, named
from headroles.data.sentences import Sentence, complete
from headroles.tables.arguments import number, one_of
from headroles.tables.io import replacing


def read(
    source: str | Path,
    target: str | Path | None = None,
    *,
    form: Form | None = None,
    text: Texts | None = None,
    label: Column | None = None,
    name: str | None = None,
    limit: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    chat: bool = False,
    answer_only: bool = True,
    links: str | Path | None = None,
) -> Corpus:
    """Read a corpus from one file, or from two files with corresponding sentences.

    Without `form`, the suffix says what a file is:

    - `.conllu`: CoNLL-U (universaldependencies.org/format).
    - `.tsv`: parallel if it has two columns and no label, otherwise labelled; two columns with the names of a sentence
      pair of GLUE are pairs without labels. Quotation marks are letters, as in GLUE's files: pandas writes them so with
      `quoting=csv.QUOTE_NONE`.
    - `.jsonl`: objects with the fields of a data set: `text`; `prompt` and `completion`, or `text` and `answer`, which
      a language model reads as one text; `messages` of a chat; `translation`; columns of GLUE; `tokens`, which are
      words, and a label of each in `ner_tags` or `labels`. A list of such objects, a data frame and a
      `datasets.Dataset` give the same corpus.
    - `.jsonl`, or `.tsv` with the columns `sentence_good` and `sentence_bad`: minimal pairs as in BLiMP (of
      translations with `source`), two sentences each, labelled "good" and "bad".
    - Any other: one sentence a line. `.csv`, `.json`, `.parquet` and `.arrow` are refused; name their folder.

    Blank lines are left out, and entries with a blank text or side; the number of such entries is logged.

    Args:
        source: The file; `.gz` is unpacked. A name such as `wmt14/de-en:test`, or a folder of parquet, JSON or CSV, is
            read with Hugging Face's `datasets`.
        target: File of the translations, read by its own suffix.
        form: "conllu", "text", "parallel", "labelled" or "pairs"; None: decided by the file's name.
        text: Text column of a labelled table, or the two of a sentence pair: names in a header, fields of JSON lines,
            or indices from 0. By default the columns of GLUE; without a header the last column that is not the label.
        label: Label column, likewise.
        name: Name of the corpus; by default from the file's name.
        limit: Number of sentences to read from the beginning; the rest of the file is left unread.
        sample: Number of sentences to draw at random, in their order. The file is read once, and only these are held in
            memory.
        seed: Seed of the draw.
        chat: Whether the tokenizer's chat template is written around each example. The text is the user's turn, and the
            translation or the second text of a pair is the assistant's answer; without one the model is about to
            answer. Tokens of the template are special tokens in every score, and have no loss. Trees of the text stay.
            `messages` are chats without this option; the answer is their last turn, if it is the assistant's.
        answer_only: Whether in texts with answers, and in chats, the answer alone has a loss, for metrics, gradients
            and training. All texts are queries and keys of attention.
        links: File of word links, as fast_align writes them: a line for each sentence pair, such as `0-0 1-2`, indices
            from 0 of a source and a target word. The tree has the words; without one, spaces separate them.

    Returns:
        The corpus.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the arguments contradict each other or the file is malformed.
    """  # noqa: DOC502
    place, source, target = str(source), Path(source), None if target is None else Path(target)
    is_named = target is None and form is None and named(place)
    _check(target, form, text, label, links, chat=chat, fetched=place if is_named else "")
    for word, count in (("limit", limit), ("sample", sample)):
        if count is not None:
            number(word, count, least=1, whole=True)
    if is_named:
        rows, where, name = gather(place, *named_columns(text, label)), place, name or place
    else:
        files = [source] if target is None else [source, target]
        rows = entries(source, target, form, text, label, None if links is None else Path(links))
        where, name = ", ".join(map(str, files)), name or stem(*files)
    sentences: Iterable[Sentence] = complete(rows, where, limit)
    drawn = sentences if sample is None else _drawn(sentences, sample, seed)
    return Corpus.of(drawn, name, chat=chat, answer_only=answer_only)


def _check(
    target: Path | None,
    form: Form | None,
    text: Texts | None,
    label: Column | None,
    links: str | Path | None,
    *,
    chat: bool,
    fetched: str,
) -> None:
    """Raise ValueError for arguments of `read` that contradict each other."""
    one_of("form", form, (None, *get_args(Form)))
    if (text is not None or label is not None) and (target is not None or form not in (None, "labelled")):
        other = f"a target, {target}" if target is not None else f"form={form!r}"
        raise ValueError(f"text= and label= must be for one labelled table, got {other} too; try without")
    if target is not None and form in ("text", "labelled", "pairs"):
        raise ValueError(f"form={form!r} must be for one file, got a target too: {target}; try without")
    if links is not None and (chat or fetched):
        other = "chat=True" if chat else f"the data set {fetched}"
        raise ValueError(f"links= must be for sentence pairs in files, got {other} too; try without")


def _drawn(sentences: Iterable[Sentence], count: int, seed: int) -> Iterator[Sentence]:
    """Draw sentences in one pass, in their order."""
    # A reservoir (Vitter 1985): the n-th sentence replaces a random one of those held with probability count / n, so
    # that at every moment all sentences so far have had the same chance, and no more than `count` are in memory.
    rng, held = Random(seed), list[tuple[int, Sentence]]()
    for place, sentence in enumerate(sentences):
        if place < count:
            held.append((place, sentence))
        elif (replaced := rng.randrange(place + 1)) < count:
            held[replaced] = place, sentence
    return (sentence for _, sentence in sorted(held, key=itemgetter(0)))


def write(corpus: Corpus, path: str | Path) -> Path:
    """Write texts and trees as CoNLL-U, so that `read` gives them back.

    Translations, labels and second texts are not written. A word without a span is `_` in a multiword token.

    Args:
        corpus: Sentences with trees.
        path: The file; gzipped if the name ends in `.gz`.

    Returns:
        The path.

    Raises:
        ValueError: If the corpus is empty, or a sentence would not be read back the same.
        OSError: If the file cannot be written.
    """  # noqa: DOC502
    path = Path(path)
    if not corpus.sentences:
        raise ValueError(f"corpus {corpus.name!r} must have sentences, got none to write to {path}")
    content = "".join(block(number, sentence) for number, sentence in enumerate(corpus, 1)).encode()
    with replacing(path) as draft:
        draft.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def as_corpus(given: CorpusLike, name: str | None = None) -> Corpus:
    """Return the corpus that a function was given, as `read` or `Corpus.of` takes it; FileNotFoundError for a text."""
    if isinstance(given, str | Path):
        if not Path(given).exists() and not named(given):
            raise FileNotFoundError(f"no file at {given}; corpus must be {TAKEN}; try [{str(given)!r}] if it is a text")
        return read(given, name=name)
    return Corpus.of(given, name)
