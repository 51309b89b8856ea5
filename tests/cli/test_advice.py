"""Advice that cannot be typed as it is printed."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
import typer
from helpers import planted
from helpers.commands import cells, model, run
from helpers.messages import whole
from helpers.relations import effects, index, told

import headroles as hr
from headroles.cli import main
from headroles.cli.advice import BY_NAME, advice

__all__ = ["model"]
PYTHON = (
    r"\b(hr|headroles)\.|`|read takes|in place\b(?! of)|"
    r"\b(DEFAULT|NAMED|SPECIAL|None|list_metrics|by_norm|staged|estimate)\b"
)
PARSED = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "few.txt"
    path.write_text("".join(f"{sentence.text}\n" for sentence in planted.corpus()[:4]))
    return path


@pytest.mark.parametrize(
    ("command", "of_python", "of_command"),
    [
        ("prune", "a ranking needs keep=0.5, or keep=36", "a ranking needs --keep 0.5, or --keep 36"),
        ("prune", "got remove=False; expected remove=True", "got --no-remove; expected --remove"),
        ("score", "got n_resamples=-1; expected 0 or more", "got --resamples -1; expected 0 or more"),
        ("score", "try reference=, or Rarity(frequent=...)", "try --reference, or Rarity(frequent=...) in Python"),
        ("score", "max_tokens must be an integer >= 1, got 0", "--max-tokens must be an integer >= 1, got 0"),
        ("score", "try cls='AutoModel' (--cls), or train it", "try --cls AutoModel, or train it"),
        ("ablate", "one for each head; try sets=", "one for each head; try sets= in Python"),
        ("score", "a column of labels (label= names it)", "a column of labels (label= in Python names it)"),
        ("score", "a column label (in Python label= names it)", "a column label (in Python label= names it)"),
        ("relate", "make it with hr.roles(scores, test=True)", "make it with headroles roles --test"),
        ("score", "try hr.ablate(replacement='mean')", "try headroles ablate --replacement mean"),
        ("score", "try hr.ablate(..., sets=sets)", "try hr.ablate(..., sets=sets) in Python"),
        ("score", "make trees with headroles.parse", "make trees with headroles parse"),
        ("score", "try hr.needles(tokenizer) and", "try hr.needles(tokenizer) in Python and"),
        ("score", "hr.load(name, source_lang=...) (--source-lang)", "--source-lang"),
        ("score", "no file at runs/seed=0/text and seed=0/a", "no file at runs/seed=0/text and seed=0/a"),
        ("prune", "try the objective 'similarity' (objective=), or", "try --strategy confidence, or"),
        ("", "no command: try headroles --help", "no command: try headroles --help"),
    ],
)
def test_advice_is_in_the_words_of_the_command(command, of_python, of_command):
    assert advice(of_python, command) == of_command


def test_what_was_typed_is_left_as_it_is():
    with mock.patch.object(sys, "argv", ["headroles", "score", "model", "seed=0"]):
        assert advice("no file at seed=0", "score") == "no file at seed=0"


@pytest.mark.parametrize("name", BY_NAME)
def test_option_help_has_no_names_of_python(name):
    command = PARSED[name.replace("_", "-")]
    for text in (command.help, *(parameter.help or "" for parameter in command.params)):
        assert not re.search(PYTHON, text)


def test_a_model_of_hidden_states_alone_is_advised_what_works(model, text, tmp_path):
    end = run("ablate", model, text, "--study", tmp_path / "of it")
    assert end.code == 2
    assert (advised := re.search(r"; try (--\w+ \w+), or load the model with its head\n$", end.err)) is not None
    assert run("ablate", model, text, *advised[1].split(), "--study", tmp_path / "of it").code == 0


def test_a_printed_study_can_be_typed(model, text, tmp_path):
    study = tmp_path / "a study of it's own"
    end = run("score", model, text, "--scores", "confidence", "--study", study)
    printed = re.search(r"; (headroles plot .*) draws figures", end.out)
    assert printed is not None
    assert shlex.split(printed[1]) == ["headroles", "plot", str(study)]
    end = run("relate", study, study)
    assert shlex.split(end.err.partition("make it with ")[2]) == ["headroles", "roles", str(study)]


def test_relate_without_an_outcome_has_the_next_command(tmp_path):
    study = hr.Study(tmp_path / "study")
    study.save("roles", told(index(layers=1), rarity=[1, 1, 0, 0, 1, 0, 0, 0]))
    study.save("heads", pd.DataFrame({"confidence": range(8)}, index=index(layers=1), dtype=float))
    assert run("relate", study.folder, study.folder).err.endswith("; make them with headroles ablate\n")


def test_relations_read_alike_whatever_is_better(tmp_path):
    """A loss that rises and a BLEU that falls are the same harm: both are printed as the same chance."""
    where = index(layers=2)
    study = hr.Study(tmp_path / "study")
    study.save("roles", told(where, rarity=[1, 1, 0, 0, 1, 0, 0, 0] * 2))
    study.save("ablation-loss-head-zero", effects(where, loss=range(16), bleu=range(0, -16, -1)))
    end = run("relate", study.folder, study.folder / "ablation-loss-head-zero.parquet")
    loss, bleu = [row for row in cells(end.out) if row[0] == "rare"]
    assert (loss[1], bleu[1]) == ("ablation[loss]", "ablation[bleu]")
    assert loss[2:] == bleu[2:]
    table = hr.relate(study, study.folder / "ablation-loss-head-zero.parquet", n_resamples=100)
    assert table["auc"].sum() == pytest.approx(1)  # the table has the values as they are


@pytest.mark.parametrize("column", ["confidence", "ablation[loss]"])
def test_agreement_names_a_missing_column(column):
    table = pd.DataFrame({"entropy": [1.0, 2, 3, 4, 5, 6, 7, 8]}, index=index(layers=1))
    message = f"columns must be some of entropy, got {column}; try hr.join with the table that has it"
    for columns, other in (([column], "entropy"), (["entropy"], column)):
        with pytest.raises(ValueError, match=whole(message)):
            hr.analysis.agreement(table, columns, other)
    with pytest.raises(ValueError, match=r"^not a table of hr.ablate: got .*; expected one column ablation\[\.\.\.\]"):
        hr.plots.agreement(table, table)
