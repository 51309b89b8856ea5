"""Dependency trees by Stanza for the sentences of a corpus, stored as CoNLL-U next to the text."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from headroles._distributed import track
from headroles.data.conllu import spans
from headroles.data.corpus import Corpus, CorpusLike, Sentence, Span
from headroles.data.readers import as_corpus, read, write
from headroles.tables.arguments import one_of
from headroles.tables.io import check_writable

Side = Literal["source", "target"]
Download = Literal["missing", "never"]

log = logging.getLogger(__name__)
_PROCESSORS = "tokenize,pos,lemma,depparse"  # Stanza adds mwt for languages with multiword tokens
_CHUNK = 512  # sentences per step of the progress bar


def parse(
    source: CorpusLike,
    *,
    language: str = "en",
    models: str | Path | None = None,
    side: Side = "source",
    download: Download | None = None,
    output: str | Path | None = None,
) -> Corpus:
    """Parse each sentence of a corpus with Stanza (Qi et al. 2020).

    Each line is one sentence and is never split. A sentence for which Stanza finds no tree, or several, is left out;
    their number is logged. Translations, labels and second texts are kept.

    Args:
        source: A file of sentences without trees, or another corpus. The trees of a file are stored next to it as
            `<file>.<language>.<hash of texts, models, Stanza's version>.conllu` and read from there the next time.
        language: Language of the text, as Stanza names it.
        models: Folder of Stanza models; by default Stanza's own.
        side: "source", or "target" to parse the translations.
        download: "missing" lets Stanza fetch missing models, and is the default without `models`; "never", the default
            with `models`, stays offline.
        output: An additional CoNLL-U file to write the trees to.

    Returns:
        A corpus of the same name with trees on one side.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: Before anything is parsed, if there is no text, trees already exist, or a model is missing; and if
            Stanza finds no tree at all.
    """  # noqa: DOC502
    one_of("side", side, get_args(Side))
    one_of("download", download, (None, *get_args(Download)))
    corpus = as_corpus(source)
    texts = [_text(corpus, number, side) for number in range(len(corpus))]
    if not any(map(str.strip, texts)):
        raise ValueError(f"corpus {corpus.name!r} must have text, got {len(texts)} blank sentences")
    if output is not None:
        check_writable(Path(output).parent, "folder of the output")
    download = download or ("missing" if models is None else "never")
    folder = None if models is None else Path(models)
    path = _cache_path(Path(source), language, folder, texts) if isinstance(source, str | Path) else None
    stored = path if path is not None and path.exists() else None
    trees = {tree.text: tree for tree in read(stored)} if stored else _parsed(texts, language, folder, download)
    parsed = Corpus(corpus.name, tuple(trees[text] for text in texts if text in trees))
    if not len(parsed):
        raise ValueError(f"Stanza found no tree in any of the {len(texts)} sentences of corpus {corpus.name!r}")
    if missing := len(texts) - len(parsed):
        first = next(number for number, text in enumerate(texts, 1) if text not in trees)
        log.warning("left out %d of %d sentences without exactly one tree; first: %d", missing, len(texts), first)
    if path is not None and stored is None:
        _store(parsed, path)
    if output is not None:
        write(parsed, output)
    kept = (pair for pair in zip(corpus, texts, strict=True) if pair[1] in trees)
    return Corpus(corpus.name, tuple(_with_tree(sentence, trees[text], side) for sentence, text in kept))


def trees_path(source: str | Path, *, language: str = "en", models: str | Path | None = None) -> Path:
    """Return the file in which `parse` stores the trees of a text, given the same arguments."""
    texts = [sentence.text for sentence in read(source)]
    return _cache_path(Path(source), language, None if models is None else Path(models), texts)


def _text(corpus: Corpus, number: int, side: Side) -> str:
    sentence = corpus[number] if side == "source" else corpus[number].target
    if sentence is None:
        raise ValueError(f"sentence {number + 1} of corpus {corpus.name!r} has no target; parse side='source'")
    if sentence.has_tree:
        raise ValueError(
            f"sentence {number + 1} of corpus {corpus.name!r} already has a tree on its {side} side; try its text alone"
        )
    return sentence.text


def _cache_path(path: Path, language: str, models: Path | None, texts: list[str]) -> Path:
    """Return the file of the stored trees, named by a hash of the texts, the models and Stanza's version."""
    digest = hashlib.sha256(f"{version('stanza')}\n{language}\n".encode())
    for file in sorted((models / language).rglob("*.pt")) if models else ():
        with file.open("rb") as content:
            digest.update(file.name.encode() + hashlib.file_digest(content, "sha256").digest())
    digest.update("\n".join(texts).encode())
    return path.with_name(f"{path.name}.{language}.{digest.hexdigest()[:12]}.conllu")


def _store(trees: Corpus, path: Path) -> None:
    try:
        write(trees, path)
    except (OSError, ValueError) as error:  # the trees are returned all the same
        log.warning("the trees could not be stored for reuse: %s", error)


def _parsed(texts: list[str], language: str, models: Path | None, download: Download) -> dict[str, Sentence]:
    """Return the tree of each distinct text, and restore torch's global generator, from which Stanza draws."""
    import torch

    with torch.random.fork_rng(devices=[]):
        return _trees(texts, _pipeline(language, models, download))


def _pipeline(language: str, models: Path | None, download: Download) -> Any:
    import stanza

    try:
        return stanza.Pipeline(
            language,
            **({} if models is None else {"dir": str(models)}),
            processors=_PROCESSORS,
            tokenize_no_ssplit=True,
            download_method=stanza.DownloadMethod.REUSE_RESOURCES if download == "missing" else None,
            verbose=False,
        )
    except Exception as error:  # Stanza raises many kinds, from KeyError to those of requests
        raise ValueError(
            f"Stanza could not load models for {language!r} from {models or 'its own folder'}: {error}; name a folder "
            "of models (models=), or be online with download='missing'"
        ) from error


def _trees(texts: list[str], pipeline: Any) -> dict[str, Sentence]:
    """Return the tree of each distinct text that has exactly one."""
    trees: dict[str, Sentence] = {}
    distinct = [text for text in dict.fromkeys(texts) if text.strip()]
    chunks = [distinct[at : at + _CHUNK] for at in range(0, len(distinct), _CHUNK)]
    for chunk in track(chunks, "parsing sentences", total=len(chunks)):
        # a line break would end Stanza's sentence; a space keeps the characters where they are
        documents = pipeline.bulk_process([text.replace("\n", " ") for text in chunk])
        for text, document in zip(chunk, documents, strict=True):
            if len(document.sentences) == 1:
                trees[text] = _tree(text, document.sentences[0])
    return trees


def _tree(text: str, parsed: Any) -> Sentence:
    """Convert a sentence of Stanza; multiword tokens are as in `conllu.spans`."""
    word_spans: list[Span | None] = []
    for token in parsed.tokens:
        surface = text[token.start_char : token.end_char]
        # Stanza may change a single word (spaces inside, <UNK> for a very long one): use the text of its token
        forms = [word.text for word in token.words] if len(token.words) > 1 else [surface]
        word_spans += spans(token.start_char, surface, forms)
    heads = tuple(word.head - 1 for word in parsed.words)
    return Sentence(text, tuple(word_spans), heads, tuple(word.deprel for word in parsed.words))


def _with_tree(sentence: Sentence, tree: Sentence, side: Side) -> Sentence:
    """Return the sentence with the tree on one side."""
    if side == "target" and sentence.target is not None:
        return replace(sentence, target=_with_tree(sentence.target, tree, "source"))
    return replace(sentence, spans=tree.spans, heads=tree.heads, relations=tree.relations)
