"""Names of corpora, files, folders and models may hold anything: nothing is parsed back out of them."""

from __future__ import annotations

import pytest
from helpers.commands import run
from helpers.prunings import learnt
from helpers.trainings import films
from helpers.trainings import tokenizer as of_films

import headroles as hr
from headroles.tables import frame
from headroles.tables.io import load_table

ODD = [
    "a|fill:mean|b",
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
    name = "a|b:c,d=e\n[bold] {x} %7C <b> Кошка |fill:mean|weights:0"
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
    table = load_table(study[1] / "ablation-accuracy-single-zero.parquet")
    fields = dict(frame.fields(frame.provenance(table, "ablation[accuracy]")))
    assert (fields["corpus"], fields["metric"], fields["fill"]) == (name, "Accuracy()", "zero")
    assert fields["model"] == f"{name}/{name} model"
    assert "<b>" not in (place / f"{name}.html").read_text()  # what could be a tag is escaped
