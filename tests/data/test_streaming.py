"""Files of any length: what is streamed is what is read at once, in memory that does not grow, and scored the same."""

import gzip
import os
import tracemalloc

import pytest
from helpers import zoo
from helpers.close import close
from helpers.commands import run
from helpers.letters import corpus, tokens_of
from helpers.messages import whole

import headroles as hr
from headroles.data.corpus import Sentence
from headroles.data.streaming import StreamingCorpus

SIZE = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same sentences as text, gzipped text, translations, a table of both, and trees."""
    folder = tmp_path_factory.mktemp("files")
    sources, targets = [one.text for one in corpus(SIZE)], [one.target.text for one in corpus(SIZE)]
    lines = [*sources[:3], "", " ", *sources[3:]]
    (folder / "text.txt").write_text("\ufeff" + "\r\n".join(lines))
    (folder / "packed.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (folder / "source.txt").write_text("".join(f"{line}\n" for line in sources))
    (folder / "target.txt").write_text("".join(f"{line}\n" if i % 5 else "\n" for i, line in enumerate(targets)))
    (folder / "pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in zip(sources, targets, strict=True)))
    (folder / "trees.conllu").write_text("".join(map(tree, range(SIZE))))
    return folder


def tree(number):
    """Three words: a verb between its subject and its object, or after both."""
    verb = 2 + number % 2
    heads = [0 if word == verb else verb for word in (1, 2, 3)]
    relations = ["root" if word == verb else "nsubj" if word == 1 else "obj" for word in (1, 2, 3)]
    forms = [chr(97 + (number * word) % 26) * word for word in (1, 2, 3)]
    rows = zip((1, 2, 3), forms, heads, relations, strict=True)
    return "".join(f"{i}\t{form}\t_\t_\t_\t_\t{to}\t{name}\t_\t_\n" for i, form, to, name in rows) + "\n"


@pytest.mark.parametrize(
    "names", [["text.txt"], ["packed.txt.gz"], ["source.txt", "target.txt"], ["pairs.tsv"], ["trees.conllu"],
              ["trees.conllu", "target.txt"]], ids="-".join,
)  # fmt: skip
def test_what_is_streamed_is_what_is_read_at_once(files, names):
    paths = [files / name for name in names]
    stream, read = StreamingCorpus(*paths, part=7), hr.read(*paths)
    assert tuple(stream) == tuple(stream) == read.sentences
    assert stream.name == read.name
    parts = list(stream.parts())
    assert [len(part) for part in parts] == [7] * (len(read) // 7) + [len(read) % 7] * bool(len(read) % 7)
    assert tuple(one for part in parts for one in part) == read.sentences


@pytest.mark.parametrize(
    ("header", "sentences"),
    [
        ("sentence_good\tsentence_bad", (Sentence("a", label="good"), Sentence("b", label="bad"))),
        ("sentence1\tsentence2", (Sentence("a", second="b"),)),
    ],
)
def test_a_header_is_no_translation(tmp_path, header, sentences):
    (tmp_path / "x.tsv").write_text(f"{header}\na\tb\n")
    assert tuple(StreamingCorpus(tmp_path / "x.tsv")) == hr.read(tmp_path / "x.tsv").sentences == sentences


def test_streamed_word_links_are_those_that_are_read(files, tmp_path):
    links = tmp_path / "links"
    links.write_text("0-0 1-1\n" * SIZE)
    pairs = files / "pairs.tsv"
    stream = StreamingCorpus(pairs, links=links, part=7)
    assert tuple(stream) == hr.read(pairs, links=links).sentences
    assert stream.name == "pairs"
    before = stream.hash
    assert before != StreamingCorpus(pairs).hash
    links.write_text("0-1 1-1\n" * SIZE)
    assert stream.hash != before
    with pytest.raises(
        ValueError, match=whole("links= are of sentence pairs: got chat=True too; leave out one of the two")
    ):
        StreamingCorpus(pairs, links=links, chat=True)
    table = hr.score(zoo.tiny("marian"), tokens_of("marian"), stream, ["links"], n_resamples=0)
    close(
        table["links"],
        hr.score(zoo.tiny("marian"), tokens_of("marian"), hr.read(pairs, links=links), ["links"], n_resamples=0)[
            "links"
        ],
    )


def test_a_streamed_chat_is_a_chat_that_is_read_and_another_corpus(files):
    paths = files / "trees.conllu", files / "target.txt"
    stream = StreamingCorpus(*paths, chat=True)
    assert tuple(stream) == hr.read(*paths, chat=True).sentences
    assert stream.chat
    assert all(part.chat for part in stream.parts())
    assert stream.hash != StreamingCorpus(*paths).hash


def test_its_hash_is_of_the_files(files, tmp_path):
    copy = tmp_path / "other.txt"
    copy.write_bytes((files / "source.txt").read_bytes())
    assert StreamingCorpus(copy).hash == StreamingCorpus(files / "source.txt").hash
    copy.write_bytes(copy.read_bytes() + b"more\n")
    assert StreamingCorpus(copy).hash != StreamingCorpus(files / "source.txt").hash
    assert StreamingCorpus(copy, files / "target.txt").hash != StreamingCorpus(copy).hash


def test_its_hash_is_of_the_files_as_they_are_now(files, tmp_path, monkeypatch):
    """The old table was returned for a file that had changed in the meantime."""
    path = tmp_path / "text.txt"
    path.write_bytes((files / "source.txt").read_bytes())
    stream, limited = StreamingCorpus(path), StreamingCorpus(path, limit=2)
    before = stream.hash, limited.hash
    age = path.stat()
    path.write_bytes(path.read_bytes().swapcase())  # of the same size
    os.utime(path, ns=(age.st_atime_ns, age.st_mtime_ns))
    assert (stream.hash, limited.hash) == (StreamingCorpus(path).hash, StreamingCorpus(path, limit=2).hash)
    assert stream.hash != before[0]
    assert limited.hash != before[1]
    later = path.stat().st_ctime + 60
    monkeypatch.setattr("headroles.data.streaming.time.time", lambda: later)
    hashed = stream.hash  # from here on it is remembered, until the file changes
    monkeypatch.setattr(StreamingCorpus, "_digest", lambda _: pytest.fail("read again"))
    assert stream.hash == hashed


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one\ntwo\nthree\n")
    sentences = iter(StreamingCorpus(path))
    next(sentences)
    with path.open("a") as file:
        file.write("four\n")
    said = f"{path} changed while it was read; try again when it is complete"
    with pytest.raises(ValueError, match=whole(said)):
        list(sentences)


def test_new_numbers_are_not_kept_under_an_old_hash(tmp_path, monkeypatch):
    """The file changes after the cache key is made and before the first batch is read."""
    model, path = zoo.tiny("bert"), tmp_path / "text.txt"
    path.write_text("".join(f"{one.text}\n" for one in corpus(6)))
    stream, read = StreamingCorpus(path), StreamingCorpus.__iter__

    def changed(self):
        path.write_text("".join(f"{one.text}\n" for one in corpus(9)))
        monkeypatch.setattr(StreamingCorpus, "__iter__", read)
        return read(self)

    monkeypatch.setattr(StreamingCorpus, "__iter__", changed)
    said = "corpus 'text' changed while it was scored; try again when it is complete"
    with pytest.raises(ValueError, match=whole(said)):
        hr.score(model, tokens_of(model), stream, "confidence", n_resamples=0, study=tmp_path / "study")
    assert hr.Study(tmp_path / "study").names() == []


@pytest.mark.slow
def test_a_long_file_begins_at_once_and_takes_no_more_memory_than_a_part(tmp_path):
    path = tmp_path / "long.txt.gz"
    packed = gzip.compress(b"a sentence of nine words or so, and again\n" * 100_000)
    path.write_bytes(packed[: len(packed) // 2])  # its first part is there before it is found to be cut off
    parts = StreamingCorpus(path, part=1000).parts()
    tracemalloc.start()
    try:
        assert len(next(parts)) == 1000
        _, first = tracemalloc.get_traced_memory()
        with pytest.raises(ValueError, match=r"long\.txt\.gz is not gzip, or not all of it, .*; after line \d{5}: "):
            for _ in parts:
                pass
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.5 * first + 2**20


def test_files_that_cannot_be_streamed(files, tmp_path):
    broken = {
        "picture.txt": (b"\x89PNG\0", " is not text: got byte 0x89 in line 1 of a binary file; expected UTF-8"),
        "latin.txt": (b"one\ncaf\xe9\n", ", line 2: byte 0xe9 is not UTF-8; convert it: iconv -f latin1 -t utf-8"),
        "ragged.tsv": (b"a\tb\nc\td\te\n", ", line 2: found 3 columns: 'c', 'd', 'e'; expected 2, as many as in the "
                       "first line"),
        "three.tsv": (b"c\td\te\n", " has 3 columns: 'c', 'd', 'e'; parallel text is two tab-separated columns, or two "
                      "files"),
        "labelled.tsv": (
            b"\nsentence\tlabel\na film\t1\n",
            " has 2 columns: 'sentence', 'label'; a streamed table is of two columns that translate each other; read "
            "others with headroles.read",
        ),
        "empty.txt": (b"\n\n", " is empty; expected at least one sentence"),
        "blank.tsv": (b"a\t\n", ": all 1 entries have a blank text; expected at least one sentence"),
    }  # fmt: skip
    for name, (content, said) in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=whole(f"{tmp_path / name}{said}")):
            list(StreamingCorpus(tmp_path / name))
    (tmp_path / "short.txt").write_text("one\ntwo\n")
    said = (
        f"{files / 'source.txt'} has {SIZE} sentences, {tmp_path / 'short.txt'} has 2; parallel files need the same "
        "number, the n-th of one translating the n-th of the other"
    )
    with pytest.raises(ValueError, match=whole(said)):
        list(StreamingCorpus(files / "source.txt", tmp_path / "short.txt"))
    with pytest.raises(FileNotFoundError, match=whole(f"no file at {tmp_path / 'none.txt'}")):
        StreamingCorpus(tmp_path / "none.txt")


@pytest.mark.parametrize(("name", "files_of"), [("bert", ["trees.conllu"]), ("marian", ["source.txt", "target.txt"])])
def test_it_is_scored_like_the_corpus_resamples_included(files, name, files_of):
    model, paths = zoo.tiny(name), [files / one for one in files_of]
    options = {"n_resamples": 20, "reference": hr.read(paths[0])}
    expected = hr.score(model, tokens_of(model), hr.read(*paths), **options)
    found = hr.score(model, tokens_of(model), StreamingCorpus(*paths, part=7), **options)
    assert list(found) == list(expected)
    for name in expected:
        close(found[name], expected[name], size=[1, *expected[name].dropna()])  # shares, distances, counts of words


def test_what_must_be_known_beforehand_is_left_out_or_refused(files):
    model, stream = zoo.tiny("bert"), StreamingCorpus(files / "text.txt")
    assert "rarity" not in hr.score(model, tokens_of(model), stream, n_resamples=0)
    faults = {
        "rarity": "score 'rarity' needs to know how frequent each token is, and 'text' is a stream; give reference=",
        "importance": "score 'importance' is of gradients, and 'text' is a stream; read it whole: headroles.read, no "
        "--stream",
    }
    for name, said in faults.items():
        with pytest.raises(ValueError, match=whole(said)):
            hr.score(model, tokens_of(model), stream, name)


@pytest.mark.slow
def test_the_command_streams(files, tmp_path):
    model = zoo.tiny("bert")
    model.save_pretrained(tmp_path / "model")
    tokens_of(model).save_pretrained(tmp_path / "model")
    command = ["score", tmp_path / "model", files / "text.txt", "--stream", "--resamples", "0"]
    done = run(*command, "--study", tmp_path / "study")
    assert (done.code, done.err) == (0, "")
    assert "confidence" in hr.Study(tmp_path / "study").load("heads")
    both = run(*command, "--limit", "3", "--study", tmp_path / "three")
    read = run(*command[:3], *command[4:], "--limit", "3", "--study", tmp_path / "read", "--scores", "confidence")
    assert (both.code, both.err, read.code) == (0, "", 0)
    tables = [hr.Study(tmp_path / name).load("heads")["confidence"] for name in ("three", "read")]
    close(*tables)


@pytest.mark.parametrize("names", [["text.txt"], ["source.txt", "target.txt"], ["pairs.tsv"], ["trees.conllu"]])
def test_a_limit_is_that_of_read(files, names):
    paths = [files / name for name in names]
    stream, read = StreamingCorpus(*paths, part=2, limit=5), hr.read(*paths, limit=5)
    assert tuple(stream) == read.sentences == hr.read(*paths).sentences[:5]
    assert [len(part) for part in stream.parts()] == [2, 2, 1]
    assert stream.hash == read.hash
    with pytest.raises(ValueError, match=whole("limit must be None or at least 1 sentence; got 0")):
        StreamingCorpus(paths[0], limit=0)


READERS = {
    "read": hr.read,
    "read(limit=1)": lambda *paths: hr.read(*paths, limit=1),
    "stream": lambda *paths: list(StreamingCorpus(*paths)),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["one.txt", "one.txt.gz", "one.conllu", "one.tsv.gz"])
def test_an_endless_line_is_not_held(name, reader, tmp_path):
    """24 MB without an end of line: it was held whole, several times over."""
    path, size = tmp_path / name, 24 * 2**20
    with gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb") as file:
        for _ in range(size // 2**20):
            file.write(b"a" * 2**20)
    said = (
        f"{path}, line 1 is too long: got more than 1048576 bytes; expected a sentence or a row of a table; try to "
        f"split the text into lines"
    )
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=whole(said)):
            READERS[reader](path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**23


def test_a_line_as_long_as_may_be_is_read(tmp_path):
    path = tmp_path / "one.txt"
    path.write_bytes(b"a" * (2**20 - 1) + b"\nb\n")
    assert [len(one.text) for one in hr.read(path)] == [2**20 - 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text.txt.gz", "pairs.tsv.gz", "labels.tsv.gz", "trees.conllu.gz"])
def test_a_limit_leaves_the_rest_of_a_file_unread(name, tmp_path):
    """What is behind the limit is damaged, and nobody notices."""
    rows = {"text.txt.gz": "{0} a\n", "pairs.tsv.gz": "{0}\tb\n", "labels.tsv.gz": "x {0}\t1\tc\n"}
    first = ["label\tsentence\tc\n"] if name.startswith("labels") else []
    block = rows.get(name) or tree(1)
    packed = gzip.compress("".join([*first, *(block.format(i) for i in range(15_000))]).encode(), compresslevel=1)
    (tmp_path / name).write_bytes(packed[: len(packed) * 3 // 4])
    assert len(hr.read(tmp_path / name, limit=3)) == 3
    with pytest.raises(ValueError, match="is not gzip, or not all of it"):
        hr.read(tmp_path / name)


def test_a_pair_of_files_is_compared_as_far_as_it_is_read(tmp_path):
    (tmp_path / "one.txt").write_text("a\nb\nc\n")
    (tmp_path / "two.txt").write_text("A\nB\n")
    assert len(hr.read(tmp_path / "one.txt", tmp_path / "two.txt", limit=2)) == 2
    said = f"{tmp_path / 'one.txt'} has 3 sentences, {tmp_path / 'two.txt'} has 2; parallel files need the same number"
    with pytest.raises(ValueError, match=said):
        hr.read(tmp_path / "one.txt", tmp_path / "two.txt", limit=3)


def test_trees_without_a_blank_line_between_them_are_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr("headroles.data.conllu.LONGEST", 100)
    path = tmp_path / "endless.conllu"
    path.write_text("".join(f"{i}\ta\t_\t_\t_\t_\t{i - 1}\tdep\t_\t_\n" for i in range(1, 5_000)))
    said = (
        f"{path}, line 1: the sentence that starts here is too long: got more than 100 lines; expected a blank line "
        f"after each sentence"
    )
    for reader in READERS.values():
        with pytest.raises(ValueError, match=whole(said)):
            reader(path)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r", "\r\r\n", "\n\r"])
@pytest.mark.parametrize("name", ["text.txt", "pairs.tsv", "labels.tsv"])
def test_lines_end_where_they_end_for_a_reader_of_the_whole(name, end, tmp_path):
    rows = {"text.txt": "One.\r\nTwo.", "pairs.tsv": "One.\tEins.\r\nTwo.\tZwei.", "labels.tsv": "sentence\tlabel"}
    (tmp_path / name).write_bytes(f"{rows[name]}{end}".encode())
    found = []
    for reading in (hr.read, hr.StreamingCorpus):
        try:
            found.append([(one.text, one.target and one.target.text) for one in reading(tmp_path / name)])
        except ValueError:
            found.append(None)
    assert found[0] == found[1]
    assert found[0] is not None or name == "labels.tsv"
