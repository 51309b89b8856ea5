"""The command line for real: every command on small real things, exit codes and files, and runs that are cut off."""

from __future__ import annotations

import gzip
import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import typer
from helpers import planted, zoo
from helpers.commands import ENVIRONMENT, Run, cells, ended, forked, run, started
from matplotlib.image import imread
from safetensors.torch import save_file

import headroles as hr
from headroles.budgets.calibration import Calibration
from headroles.cli import main as cli
from headroles.cli.commands import TOY_SENTENCES, _named_heads
from headroles.data.readers import write
from headroles.tables import frame
from headroles.tables.columns import PRINTED
from headroles.tables.io import load_table
from headroles.tables.study import Study

HEAVY = {"torch", "transformers", "stanza", "captum", "matplotlib", "seaborn", "scipy", "sklearn"}
NAMES = ["confidence", "position", "syntax"]
FEW = ["--resamples", 50, "--scores", ",".join(NAMES)]  # fewer figures to draw
SLACK = 3  # how much slower than the promise a machine of the CI may be
COMMANDS: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(planted.corpus()[:60], tmp_path_factory.mktemp("corpus") / "planted.conllu")


@pytest.fixture(scope="module")
def scored(model: Path, trees: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A finished run of `score`, and its study."""
    study = tmp_path_factory.mktemp("scored") / "deep" / "study"
    return run("score", model, trees, "--study", study, *FEW, figures=True), study


@pytest.fixture
def study(scored: tuple[Run, Path], tmp_path: Path) -> Path:
    """A study of one's own, with the tables of that run and no figures."""
    folder = tmp_path / "study"
    folder.mkdir()
    for path in scored[1].glob("*.parquet"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


# --- help and start-up -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_each_of_its_options_say_what_they_are(name):
    command = COMMANDS[name]
    assert re.fullmatch(r"[A-Z][^\n]+\.", command.help)
    for parameter in command.params:
        assert re.match(r'["A-Z]', parameter.help or ""), parameter.name
        assert parameter.help.endswith((".", "?")), parameter.name
    shown = run(name, "--help")
    assert shown.code == 0
    assert shown.err == ""
    assert not [one for parameter in command.params for one in parameter.opts[:1] if one not in shown.out]


def test_without_a_command_the_commands_are_listed():
    bare, asked = run(), run("--help")
    assert (bare.code, asked.code) == (2, 0)
    assert asked.err == ""
    assert all(name in bare.out + bare.err and name in asked.out for name in COMMANDS)


@pytest.mark.slow
def test_the_module_and_the_script_are_the_command_line():
    script = Path(sys.executable).with_name("headroles")
    found = ended(started("--help"))
    assert found.code == 0
    assert found.out == run("--help").out
    if script.exists():
        assert subprocess.check_output([script, "--help"], env=ENVIRONMENT, text=True) == found.out


HELP = "import sys, headroles.cli.main as c\nsys.argv[1:] = ['--help']\ntry: c.main()\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    ("code", "seconds"),
    [("import headroles", 0.3), ("import headroles.plots", 1.5), (HELP, 1)],
    ids=["package", "plots", "help"],
)
def test_starting_is_quick_and_brings_in_nothing_heavy(code, seconds):
    report = f"""import sys, time
start = time.process_time()
{code}
took = time.process_time() - start
print('\\n', took, *sorted({HEAVY!r} & set(sys.modules)))"""
    least = math.inf
    for _ in range(3):  # what else the machine does can only add to the time
        took, *found = subprocess.check_output([sys.executable, "-c", report], text=True).splitlines()[-1].split()
        assert found == []
        if (least := min(least, float(took))) < seconds * SLACK:
            break
    assert least < seconds * SLACK


# --- score, roles, plot ----------------------------------------------------------------------------------------------


def test_score_writes_the_tables_and_figures_it_says(scored):
    done, folder = scored
    assert done.code == 0
    assert done.err == ""
    said = re.search(rf"tables are in {re.escape(str(folder))}, and these figures: (.*)\n", done.out)
    assert said is not None
    figures = said[1].split(", ")
    assert sorted([*figures, "heads.parquet", "offsets.parquet", "roles.parquet"]) == sorted(
        path.name for path in folder.glob("[!.]*")
    )
    names = ["heatmap-confidence", "heatmap-position-best", "dependency-enc-self", "roles-enc-self", "offsets"]
    assert figures == [f"{name}.png" for name in names]
    assert all(min(imread(folder / name).shape[:2]) > 100 for name in figures)


def test_its_tables_are_those_of_the_library(scored, trees):
    folder = scored[1]
    table, roles = load_table(folder / "heads.parquet"), load_table(folder / "roles.parquet")
    again = hr.score(planted.model(), planted.tokenizer(), hr.read(trees), NAMES, n_resamples=50)
    pd.testing.assert_frame_equal(_bare(table), _bare(again), rtol=0, atol=1e-9)
    pd.testing.assert_frame_equal(_bare(roles), _bare(hr.roles(table)))
    offsets = hr.data.offsets(hr.read(trees))
    pd.testing.assert_frame_equal(_bare(load_table(folder / "offsets.parquet")), _bare(offsets))
    fields = dict(field.split(":", 1) for field in frame.provenance(table, "confidence").split("|"))
    assert {"corpus": "planted", "sentences": "60", "resamples": "50", "seed": "0"}.items() <= fields.items()


def _bare(table: pd.DataFrame) -> pd.DataFrame:
    bare = table.copy()
    bare.attrs = {}
    return bare


def test_it_prints_the_heads_that_have_roles(scored):
    done, folder = scored
    roles = load_table(folder / "roles.parquet")
    having = roles[[name for name in roles if roles[name].dtype == bool]].any(axis=1)
    assert f"{having.sum()} of 16 heads have a role" in done.out
    printed = dict(row[:2] for row in cells(done.out) if len(row) == 3)
    assert printed["positional[-1]"] == str(roles["positional[-1]"].sum())
    (kind, layer, head), *_ = roles.index[roles["positional[-1]"]]
    assert f"L{layer}H{head} 1.00" in done.out


@pytest.mark.slow
def test_a_second_run_keeps_the_tables(study, model, trees, monkeypatch):
    before = _contents(study)
    monkeypatch.setattr("headroles.scores.runner._score", lambda *_, **__: pytest.fail("scored again"))
    monkeypatch.setattr("headroles.scores.runner.offsets", lambda *_: pytest.fail("counted again"))
    again = run("score", model, trees, "--study", study, *FEW)
    assert again.code == 0
    after = _contents(study)
    assert (after["heads.parquet"], after["offsets.parquet"]) == (before["heads.parquet"], before["offsets.parquet"])
    assert after["roles.parquet"][0] == before["roles.parquet"][0]  # told again, the same
    assert f"tables are in {study}; headroles plot {study} draws figures\n" in again.out
    assert list(study.glob("*.png")) == []


def _contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.parquet")}


def _flag(name: str) -> str:
    return f"--{name.removeprefix('n_').replace('_', '-')}"


@pytest.mark.slow
def test_every_option_of_score_reaches_the_table(model, trees, tmp_path):
    reference = tmp_path / "reference.txt"
    reference.write_text("the a with near .\n")
    options: dict[str, object] = {"scores": "confidence, rarity", "limit": 20, "reference": reference, "n_resamples": 7}
    options |= {"seed": 3, "max_tokens": 64, "device": "cpu", "study": tmp_path / "study", "rules": "cp"}
    flags = [part for name, value in options.items() for part in (_flag(name), value)]
    assert run("score", model, trees, *flags).code == 0
    table = load_table(tmp_path / "study" / "heads.parquet")
    assert {column.partition(".")[0] for column in table} == {"confidence", "rarity"}
    again = hr.score(
        planted.model(), planted.tokenizer(), hr.read(trees, limit=20), ["confidence", "rarity"],
        reference=hr.read(reference), n_resamples=7, seed=3, max_tokens=64,
    )  # fmt: skip
    pd.testing.assert_frame_equal(_bare(table), _bare(again), rtol=0, atol=1e-9)
    assert frame.resamples(table)["confidence"].shape == (16, 7)
    assert {"sentences:20", "resamples:7", "seed:3"} <= set(frame.provenance(table, "confidence").split("|"))


@pytest.mark.slow
def test_scores_by_norm_have_tables_roles_and_figures(model, trees, tmp_path):
    done = run("score", model, trees, "--weights", "norm", "--study", tmp_path, *FEW)
    assert done.code == 0
    table = load_table(tmp_path / "heads.parquet")
    assert all("-norm" in name for name in table)
    assert "weights='norm'" in frame.provenance(table, "confidence-norm")
    roles = hr.roles(table)
    pd.testing.assert_frame_equal(load_table(tmp_path / "roles.parquet"), roles)
    assert {name.partition("[")[0] for name in roles} == {"positional-norm", "syntactic-norm"}


@pytest.mark.slow
def test_scores_without_a_value_are_no_obstacle_to_the_figures(model, tmp_path):
    text = tmp_path / "two.txt.gz"
    text.write_bytes(gzip.compress(b"the a .\nnear the a .\n"))
    options = ["--resamples", 0, "--scores", "confidence,rarity"]
    done = run("score", model, text, "--study", tmp_path / "study", *options, figures=True)
    assert (done.code, done.err) == (0, "")
    assert load_table(tmp_path / "study" / "heads.parquet")["rarity"].isna().all()
    assert (tmp_path / "study" / "heatmap-confidence.png").is_file()
    assert not (tmp_path / "study" / "heatmap-rarity.png").exists()


@pytest.mark.slow
def test_roles_with_other_thresholds(study):
    plain, strict = (
        run("roles", study),
        run("roles", study, "--threshold", "positional=2", "--threshold", "syntactic=0.6"),
    )
    assert (plain.code, plain.err) == (strict.code, strict.err) == (0, "")
    assert "positional" in plain.out
    assert "positional" not in strict.out.partition("\nroles looked for in ")[0]
    assert strict.out.endswith(f"written: {study / 'roles.parquet'}\n")
    expected = hr.roles(load_table(study / "heads.parquet"), thresholds={"positional": 2, "syntactic": 0.6})
    pd.testing.assert_frame_equal(_bare(load_table(study / "roles.parquet")), _bare(expected))


@pytest.mark.slow
def test_roles_with_tests(study):
    done = run("roles", study, "--test")
    assert done.code == 0, done.err
    assert "significantly so at 0.05" in done.out
    assert {"positional[-1].p", "positional[-1].holm"} <= {*load_table(study / "roles.parquet")}


@pytest.mark.slow
def test_role_tests_of_a_study(study, model, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    other = write(planted.corpus()[60:72], tmp_path / "other.conllu")
    options = ["--metric", "agreement", "--resamples", 50, "--study", study]
    done = run("test-roles", model, other, "--heads", "L0H0,L1H5", *options)
    assert (done.code, done.err) == (0, "")
    table = load_table(study / "role-tests-agreement.parquet")
    roles = load_table(study / "roles.parquet")
    expected = hr.test_roles(
        planted.model(), planted.tokenizer(), hr.read(other), roles, metric="agreement", heads="L0H0,L1H5",
        n_resamples=50,
    )  # fmt: skip
    pd.testing.assert_frame_equal(_bare(table), _bare(expected), rtol=0, atol=1e-9)
    alone = [heads for heads, _ in table.index if ":" in heads]
    assert {*alone} == {"enc-self:0:0", "enc-self:1:5"}
    assert all(heads in done.out for heads, _ in table.index if ":" not in heads)
    assert [f"\n{head}, " in done.out for head in ("L0H0", "L1H5", "enc-self:0:0")] == [True, True, False]
    assert all(verdict in done.out for verdict in table["verdict"])
    assert {name for name in PRINTED["role-"].columns if table[name].notna().any()} <= {*done.out.split()}
    low, high = table.loc[("enc-self:0:0", slice(None)), ["role_pattern.low", "role_pattern.high"]].iloc[0]
    assert re.search(rf"\[-?{abs(low):.3f}\d*, -?{abs(high):.3f}\d*\]", done.out) is not None
    assert "p and interval of removed are from 12 examples" in caplog.text


@pytest.mark.slow
def test_role_tests_of_chosen_roles_of_another_study(study, model, tmp_path):
    """Sinks, of which a language model has hundreds, are tested if they are asked for."""
    other = write(planted.corpus()[60:72], tmp_path / "other.conllu")
    roles = load_table(study / "roles.parquet")
    for end in ("", ".value", ".margin", ".stability"):
        roles[f"sink[first]{end}"] = roles[f"positional[-1]{end}"]
    hr.save_table(roles, (tmp_path / "from").joinpath("roles.parquet"))
    options = ["--heads", "L0H0", "--metric", "agreement", "--resamples", 20, "--roles-of", tmp_path / "from"]
    done = run("test-roles", model, other, *options, "--study", tmp_path / "default")
    assert (done.code, done.err) == (0, "")
    last = "not tested: sink[first]; --roles all tests all roles, a head at a time\n"
    assert done.out.endswith(last)
    assert "sink" not in done.out.removesuffix(last)
    kept = {*load_table(tmp_path / "default" / "role-tests-agreement.parquet").index.get_level_values("role")}
    options += ["--study", tmp_path / "sinks"]
    done = run("test-roles", model, other, *options, "--roles", "positional,sink[first]")
    assert done.code == 0, done.err
    found = {*load_table(tmp_path / "sinks" / "role-tests-agreement.parquet").index.get_level_values("role")}
    assert found == {role for role in kept if role.startswith(("positional", "all"))} | {"sink[first]"}
    done = run("test-roles", model, other, *options, "--roles", "positonal")
    assert re.match(r"headroles: role must be one of .*, got 'positonal'; try 'positional'", done.err)


@pytest.mark.slow
def test_role_tests_on_the_examples_of_the_roles_are_warned_of(study, model, trees, caplog):
    options = ["--heads", "L0H0", "--metric", "agreement", "--resamples", 2, "--roles", "positional[-1]"]
    assert run("test-roles", model, trees, *options, "--study", study).code == 0
    assert "roles are tested on the corpus on which they were assigned: got planted; expected other" in caplog.text


@pytest.mark.slow
def test_plot_draws_what_score_drew(scored, study):
    done = run("plot", study)
    assert (done.code, done.err) == (0, "")
    assert sorted(path.name for path in study.iterdir()) == sorted(path.name for path in scored[1].glob("[!.]*"))
    figures = sorted(path.name for path in study.glob("*.png"))
    assert sorted(done.out.strip().rpartition(": ")[2].split(", ")) == figures
    assert [(study / name).read_bytes() for name in figures] == [(scored[1] / name).read_bytes() for name in figures]


# --- parse, demo ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_score_on_translations(tmp_path):
    from helpers.letters import corpus, tokens_of

    zoo.tiny("marian").save_pretrained(tmp_path / "model")
    tokens_of("marian").save_pretrained(tmp_path / "model")
    sides = {"en": [one.text for one in corpus(12)], "de": [one.target.text for one in corpus(12) if one.target]}
    for language, lines in sides.items():
        (tmp_path / f"news.{language}").write_text("\n".join(lines))
    (tmp_path / "links").write_text("0-0\n" * 12)
    common = ["--limit", 30, "--resamples", 20, "--links", tmp_path / "links", "--study", tmp_path / "study"]
    done = run("score", tmp_path / "model", tmp_path / "news.en", tmp_path / "news.de", *common)
    assert (done.code, done.err) == (0, "")
    table = load_table(tmp_path / "study" / "heads.parquet")
    assert list(table.index.unique("kind")) == ["enc-self", "dec-self", "cross"]
    assert table["confidence"].notna().all()
    assert table.xs("cross")[["alignment[monotone]", "links"]].notna().all(axis=None)
    assert "decoder:reference" in frame.provenance(table, "confidence").split("|")
    assert "syntax[nsubj dep>head]" not in table


@pytest.mark.slow
@pytest.mark.shared
def test_parse_says_where_the_trees_are(shared, tmp_path):
    text = tmp_path / "two.txt"
    text.write_text("The old dog chased a cat.\nIt ran.\n")
    done = run("parse", text, "--models", shared / "stanza")
    (beside,) = tmp_path.glob("two.txt.en.*.conllu")
    assert done == (0, f"2 sentences parsed; their CoNLL-U is {beside}\n", "")
    output = tmp_path / "out.conllu.gz"
    again = run("parse", text, "--models", shared / "stanza", "--language", "en", "--output", output, "--json")
    assert again.code == 0
    result = json.loads(again.out)
    assert result["lines"] == [f"2 sentences parsed; their CoNLL-U is {output}"]
    assert result["next"] == [f"headroles score MODEL {output} --study study"]
    assert hr.read(output).sentences == hr.read(beside).sentences
    assert [one.has_tree for one in hr.read(output)] == [True, True]


# --- runs that are cut off -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that takes a while."""
    sentences = planted.corpus().sentences * 2
    return write(hr.Corpus("long", sentences), tmp_path_factory.mktemp("long") / "long.conllu")


@pytest.fixture(params=[signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)], ids=["ctrl-c", "kill"])
def cut_off(request, study: Path, model: Path, long: Path) -> tuple[signal.Signals, Run, dict[str, Any]]:
    """A run of `score` on another corpus that was cut off while it scored, and the tables there were before."""
    before = _contents(study)
    process = forked("score", model, long, "--study", study, "--overwrite")
    while "\n" not in process.said():
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(0.1)
    process.send_signal(request.param)
    end = ended(process)
    said, _, rest = end.err.partition("\n")
    assert said.startswith(f"headroles: {study}: replacing tables of another corpus: heads, ")
    return request.param, end._replace(err=rest), before


@pytest.mark.slow
def test_an_interrupted_run_leaves_the_tables_and_the_next_one_completes(cut_off, study, model):
    how, end, before = cut_off
    if how == signal.SIGINT:
        assert end == (130, "", "headroles: interrupted: run it again to continue\n")
    else:
        assert end == (-signal.SIGKILL, "", "")
    assert _contents(study) == before
    assert {name: len(Study(study).load(name)) > 0 for name in Study(study).names()} == dict.fromkeys(
        ["heads", "offsets", "roles"], True
    )
    short = planted.corpus()[60:70]
    done = run(
        "score", model, write(short, study.parent / "next.conllu"), "--study", study, "--overwrite", "--resamples", 5
    )
    assert done.code == 0
    assert "sentences:10" in frame.provenance(Study(study).load("heads"), "confidence").split("|")


def test_a_kept_table_says_what_it_was_made_from(study):
    fields = [field.partition(":")[0] for field in Study(study).load("heads").attrs["recipe"].split("|")]
    assert {"weights", "text", "scores", "resamples", "seed", "reference", "headroles"} <= set(fields)


def test_check_model_takes_a_class_and_random_weights(own):
    refused = run("check-model", own, "--cls", "NoSuchClass")
    assert refused.code == 2
    assert "got NoSuchClass from cls" in refused.err
    save_file({"other": torch.zeros(1)}, own / "model.safetensors", {"format": "pt"})
    refused = run("check-model", own)
    assert refused.code == 2
    assert "the checkpoint has no weight of BertModel" in refused.err
    done = run("check-model", own, "--allow-random")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        "score --scores confidence,importance,entropy --resamples 0",
        "train --epochs 1 --output trained",
    ],
)
@pytest.mark.parametrize("second", ["", "others.txt"])
def test_a_decoder_says_once_that_it_reads_no_translations(command, second, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    decoder = hr.tiny_model("llama", num_key_value_heads=2, vocab_size=len(planted.tokenizer()))
    hr.save(decoder, planted.tokenizer(), "decoder")
    (tmp_path / "others.txt").write_text("the a .\nnear .\n")
    (tmp_path / "texts.txt").write_text("near .\nthe a .\n")
    name, *options = command.split()
    done = run(name, "decoder", "texts.txt", *filter(None, [second]), *options, "--json")
    assert done.code == 0, done.err
    said = (
        "translations are not read: got LlamaForCausalLM, which reads only the texts; try --chat, with which a decoder "
        "reads them as answers"
    )
    assert json.loads(done.out)["warnings"].count(said) == bool(second)
    assert caplog.messages.count(said.replace("--chat", "chat=True (--chat)")) == bool(second)


# --- cache budgets ---------------------------------------------------------------------------------------------------

KEPT = ["--keep", 2, "--sink", 2, "--recent", 3, "--points", 2]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A small decoder that reads words and digits."""
    folder = tmp_path_factory.mktemp("decoder")
    tokenizer = hr.load("minilm")[1]
    options = {"num_key_value_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 512}
    hr.tiny_model("llama", **options).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path):
    """Texts with answers, as a table and as JSON lines."""
    rows = [("The key of the barn is red . Which key ?", "red"), ("He has a dog and a cat . What has he ?", "a dog")]
    (tmp_path / "texts.tsv").write_text("".join(f"{text}\t{answer}\n" for text, answer in rows))
    objects = [json.dumps({"text": text.replace(" . ", " .\n"), "answer": answer}) for text, answer in rows]
    (tmp_path / "texts.jsonl").write_text("\n".join(objects))
    return tmp_path


@pytest.mark.parametrize("name", ["texts.tsv", "texts.jsonl"])
def test_its_table_is_that_of_the_function(decoder, texts, name):
    done = run("cache-budget", decoder, texts / name, "--study", texts / "study", *KEPT)
    assert (done.code, done.err) == (0, "")
    table = hr.Study(texts / "study").load("budget-integrated-gradients")
    model, tokenizer = hr.load(decoder)
    expected = hr.cache_budget(model, tokenizer, hr.read(texts / name), keep=2, sink=2, recent=3, points=2)
    pd.testing.assert_frame_equal(table, expected)
    assert "2 of 4 groups keep their whole cache" in done.out
    assert "on the loss: above 0 is harm" in " ".join(done.out.split())
    assert hr.BudgetedCache(model, table).get_seq_length() == 0
    other = hr.tiny_model("llama", seed=1, num_key_value_heads=2, vocab_size=len(tokenizer))
    with pytest.raises(ValueError, match="the table must be of the weights"):
        hr.BudgetedCache(other, table)


@pytest.mark.slow
def test_a_second_run_measures_nothing_and_exports(decoder, tmp_path, monkeypatch):
    command = ["cache-budget", decoder, "hidden-facts", "--length", 30, "--limit", 2, "--study", tmp_path, *KEPT]
    assert run(*command).code == 0
    monkeypatch.setattr(Calibration, "along_path", lambda *_: pytest.fail("measured again"))
    table = hr.Study(tmp_path).load("budget-integrated-gradients")
    for form, names in (
        ("duo", ["config.json", "full_attention_heads.tsv"]),
        ("kvpress", ["config.json", "full_attention_heads.tsv"]),
        ("json", ["budget.json"]),
    ):
        done = run(*command, "--export", form)
        assert (done.code, done.err) == (0, "")
        folder = tmp_path / f"budget-integrated-gradients-{form}"
        assert sorted(path.name for path in folder.iterdir()) == names
        assert str(folder / names[-1]) in done.out
        for path in hr.export_budget(table, tmp_path / "expected", form):
            assert path.read_bytes() == (folder / path.name).read_bytes()
    result = json.loads(run(*command, "--json").out)
    assert [row["effect"] for row in result["tables"][0]["rows"]] == pytest.approx(table["effect"].tolist())
    model, tokenizer = hr.load(decoder)
    haystack = hr.synthetic_corpus(TOY_SENTENCES)
    facts = hr.hidden_facts(tokenizer, 2, length=30, haystack=haystack)
    fields = dict(part.split(":", 1) for part in hr.provenance(table, "effect").split("|"))
    assert (fields["text"], fields["layers"], fields["shared"]) == (facts.hash, "2", "dec-self=2")


# --- the argument of heads

FOUR = frame.index({("enc-self", 0): 4})


def survival(tmp_path: Path, **columns: list[float]) -> Path:
    table = frame.table({name: pd.Series(values, FOUR, float) for name, values in columns.items()}, FOUR, "weights:a")
    return hr.save_table(table, tmp_path / f"{len(columns)} {next(iter(columns))[-2]}.parquet")


def named(text: object) -> Any:
    call = SimpleNamespace(given={"heads": str(text)}, arguments={})
    _named_heads(call)  # type: ignore[arg-type]
    return call.arguments["heads"]


def test_kept_heads_are_a_column_of_a_table_or_a_text(tmp_path: Path) -> None:
    one = survival(tmp_path, **{"survival[a 2]": [1, 0, 1, 0], "survival[a 2].order": [3, 1, 4, 2]})
    two = survival(
        tmp_path, **{"survival[a]": [1, 0, 1, 0], "survival[b]": [0, 0, 1, 1], "survival[a].open": [0.5] * 4}
    )
    for text, kept in ((one, [1, 0, 1, 0]), (f"{two}:survival[b]", [0, 0, 1, 1])):
        assert named(text).tolist() == kept
    assert named("enc-self:0:1,L0H2") == "enc-self:0:1,L0H2"
    for text, message in (
        (two, r"column of .*\.parquet must be one of survival\[a\], survival\[b\], got ''"),
        ("L0H1,L0", r"head 'L0' is not of the form L0H2, or enc-self L0H2"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            named(text)
