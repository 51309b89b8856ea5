"""Artefacts are printed with what they are of."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.commands import cells, run
from helpers.letters import tokens_of, writing
from helpers.prunings import learnt
from helpers.tagged import letters, tagged, tagger
from helpers.trainings import films
from helpers.trainings import tokenizer as of_films

import headroles as hr
from headroles.cli.console import recording
from headroles.cli.results import print_table, show_roles
from headroles.tables import frame
from headroles.tables.columns import PRINTED
from headroles.tables.declared import costs

FIGURES = Path(__file__).parents[2] / "figures/models"


def test_an_artefact_without_its_paper_is_found(study):
    for paper in (["fig1a"], ["voita2019", "fig1a"]):
        end = run("reproduce", *paper, "--from", study.folder)
        assert end.code == 2
        assert end.err.startswith("headroles: nothing was made: fig1a of voita2019: ")
        assert "headroles score MODEL CORPUS --scores confidence,relevance" in end.err
        assert "not made" in end.out


def test_what_is_made_ends_well(study):
    end = run("reproduce", "voita2019", "fig6", "--from", study.folder)  # of a formula
    assert (end.code, end.err) == (0, "")


def test_an_artefact_is_printed_with_its_claim_and_verdict_and_ten_rows(tmp_path):
    place = tmp_path / "multi30k-en-de"
    for name in ("relevance/heads.parquet", "pruning/sparsity-l0.parquet"):
        (place / name).parent.mkdir(parents=True)
        shutil.copy(FIGURES / place.name / name, place / name)
    end = run("reproduce", "voita2019", "fig1b", "--from", place)
    claim, verdict, command, *_ = end.out.splitlines()
    assert claim == "the claim: Heads of large relevance are confident, with few exceptions."
    assert verdict.startswith("does it hold here? cannot be said: rank correlation with relevance within layers 0.61 [")
    assert verdict.endswith("]; the value of untrained models is unknown")
    asked = "headroles reproduce voita2019 fig1b --model MODEL --data FOLDER"
    assert command == f"an untrained model is measured by {asked}"
    end = run("reproduce", "voita2019", "fig9", "--from", place)
    rows = hr.load_table(place / "papers/voita2019/fig9.parquet")
    assert f"voita2019 fig9, 10 of {len(rows)} rows" in end.out
    lines = [first for first, *_ in cells(end.out) if first.isdigit()]
    heads = [f"{number:.0f}" for number in rows["heads"][:10]]
    assert lines[:10] == heads
    assert set(lines) == {*heads}  # also where columns follow below


def test_an_artefact_of_several_papers_and_one_of_none(study):
    end = run("reproduce", "fig3", "--from", study.folder)
    assert end.err.startswith("headroles: paper of 'fig3' must be one of voita2019, michel2019, got none; try ")
    end = run("reproduce", "fig99", "--from", study.folder)
    assert end.err.startswith("headroles: paper must be one of voita2019, michel2019, budhraja2020, or an artefact")


# roles
def scored(sizes, columns, *, seed=0):
    """The roles of heads with random scores, of some of which all heads have a role."""
    index = frame.index({(kind, layer): wide for kind, (deep, wide) in sizes.items() for layer in range(deep)})
    draws = np.random.default_rng(seed)
    values = {name: draws.uniform(low, 1, len(index)) for name, low in columns.items()}
    values |= {f"{name}.baseline": np.zeros(len(index)) for name in columns if name.startswith("syntax")}
    return hr.roles(frame.table(values, index, "made:by hand"))


def printed(table, capsys):
    show_roles(table)
    return capsys.readouterr().out.splitlines()


def test_roles_of_many_heads_are_few_lines_with_the_strongest_first_and_sinks_last(capsys):
    table = scored(
        {"dec-self": (30, 9)}, {"sink[first]": 0.45, "sink[special]": 0.45, "position[-1]": 0, "induction": 0}
    )
    lines = printed(table, capsys)
    rows = [row for row in cells("\n".join(lines)) if len(row) == 3][1:]
    counts = {role: count for role, count, _ in rows}
    sinks = (table["sink[first]"] | table["sink[special]"]).sum()
    assert counts == {
        "positional[-1]": str(table["positional[-1]"].sum()), "induction": str(table["induction"].sum()),
        "sink": str(sinks),
    }  # fmt: skip
    assert len(lines) < 16
    text = " ".join(row[-1] for row in cells("\n".join(lines)))
    for role, after in (("positional[-1]", 5), ("induction", 5)):
        order = table[f"{role}.value"].sort_values(ascending=False)
        strongest = [f"L{layer}H{head} {value:.2f}" for (_, layer, head), value in order.head(after).items()]
        assert f"{', '.join(strongest)}, and {table[role].sum() - after} more" in text
    assert f"and {sinks - 1} more" in rows[-1][-1]
    assert "sink" in rows[-1]


def test_all_heads_of_each_role_are_listed_if_asked(tmp_path):
    columns = {"sink[first]": np.linspace(0.1, 1, 40), "induction": np.linspace(1, 0.1, 40)}
    scores = frame.table(columns, frame.index({("dec-self", 0): 40}), "model:m|weights:a|corpus:c|sentences:200")
    hr.save_table(scores, tmp_path / "heads.parquet")
    few = run("roles", tmp_path).out
    command = re.search(r"; headroles (roles .* --all) lists all heads\n", few)
    assert command is not None
    found = run(*shlex.split(command[1])).out
    assert "\nroles looked for in 40 heads of m: sink, induction on 200 sentences of c\n" in found
    for name, values in columns.items():
        heads = {f"L0H{head} {value:.2f}" for head, value in enumerate(values) if value > 0.5}
        text = re.search(rf"{name.partition('[')[0]} +{len(heads)} +([^a-km-z]*)", found)
        assert text is not None
        assert {" ".join(part.split()) for part in text[1].split(",")} == heads
    assert "more" in few
    assert not {"more", "--all"} & {*found.split()}


def test_a_role_that_few_resamples_keep_is_marked(capsys):
    table = scored({"dec-self": (1, 2)}, {"induction": 0.6})
    table["induction.stability"] = [0.94, 0.95]
    text = "".join(printed(table, capsys))
    assert [
        f"{name} {table['induction.value'].iloc[row]:.2f}{mark}" in text
        for row, (name, mark) in enumerate([("L0H0", "?"), ("L0H1", "")])
    ] == [True, True]
    assert text.count("?") == 2  # and below


def test_roles_are_printed_without_the_sink_where_they_are_known(capsys):
    table = scored({"dec-self": (1, 4)}, {"induction": 0, "induction-nosink": 0.6, "sink[first]": 0.6})
    text = "".join(printed(table, capsys))
    assert "4 of 4 heads have a role" in text
    assert f"{table['induction-nosink.value'].max():.2f}" in text
    assert "nosink" not in text
    assert "without the sink, but for sinks" in " ".join(text.split())


@pytest.mark.parametrize(
    ("sentences", "words"),
    [("5", "1 of their 2 roles are stable; 5 sentences are few"), ("1000", "1 of their 2 roles are stable")],
)
def test_the_headline_says_how_many_roles_are_stable_and_that_few_sentences_are_few(sentences, words, capsys):
    table = scored({"dec-self": (1, 2)}, {"induction": 0.6})
    table["induction.stability"] = [0.94, 0.95]
    table.attrs["signatures"] = {"induction": f"corpus:c|sentences:{sentences}"}
    assert printed(table, capsys)[0] == f"2 of 2 heads have a role; {words}"


def test_no_role_at_all_is_said(capsys):
    assert "0 of 4 heads have a role" in printed(scored({"enc-self": (2, 2)}, {"induction": 0}) * 0, capsys)[0]


def test_a_score_without_a_role_is_printed_by_its_largest_heads(tmp_path):
    """Relevance gives nobody a role: the command said that it was measured, and no number."""
    (tmp_path / "few.txt").write_text("The old dog saw a cat.\nNobody knows why the lights are off.\n")
    done = run("score", "minilm", tmp_path / "few.txt", "--scores", "relevance", "--study", tmp_path / "study")
    assert done.code == 0, done.err
    table = hr.Study(tmp_path / "study").load("heads")
    values = table["relevance[cp]"].nlargest(10)
    lines = [row for row in cells(done.out) if row[0].startswith("L")]
    assert [row[0] for row in lines] == [f"L{layer}H{head}" for _, layer, head in values.index]
    assert all(row[1].startswith(f"{value:.3f} [") for value, row in zip(values, lines, strict=True))


@pytest.fixture
def classifier(tmp_path, monkeypatch):
    """A classifier whose heads do nothing, and twelve films with labels: their files."""
    monkeypatch.chdir(tmp_path)
    model = deepcopy(learnt())
    torch.nn.init.zeros_(model.classifier.weight)
    torch.nn.init.zeros_(model.classifier.bias)
    hr.save(model, of_films(), "model")
    labels = ["neg", "pos", "pos"] * 4
    rows = [f"{label}\t{one.text}\n" for label, one in zip(labels, films(12), strict=True)]
    Path("films.tsv").write_text("".join(["label\tsentence\n", *rows]))
    return "model", "films.tsv"


def test_a_classifier_at_chance_is_said_to_be_and_that_no_head_changes_it(classifier):
    end = run("evaluate", *classifier, "--metrics", "accuracy", "--resamples", 20)
    assert end.out.startswith("metrics on 12 sentences of films\n")
    assert "\naccuracy is near chance (0.67)\n" in end.out
    end = run("ablate", *classifier, "--metric", "accuracy", "--resamples", 20)
    assert re.match(r"the intact model: accuracy 0\.\d+ \[.*\] on 12 sentences of films\nno head changes it\n", end.out)
    assert "0.000" not in end.out


def test_chance_is_that_of_the_labels_of_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hr.save(tagger(), letters(), "model")
    Path("words.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in tagged()))
    end = run("evaluate", "model", "words.jsonl", "--metrics", "accuracy", "--resamples", 0)
    assert "\naccuracy is near chance (0.54)\n" in end.out  # 7 of 13 words


def test_prune_prints_the_metric_before_and_after(classifier):
    end = run("prune", *classifier, "--strategy", "random", "--keep", 4)
    value = hr.evaluate(*hr.load("model"), hr.read("films.tsv"), "accuracy", n_resamples=0).loc["accuracy", "value"]
    change = "+0.000 [-0.265, +0.265]"  # paired: each of 12 examples has the same answer before and after
    assert end.out.startswith(
        f"accuracy on the 12 training examples: {value:.3f} before, {value:.3f} after, {change}\npruned: L0H"
    )


def test_prune_says_that_its_examples_chose_the_heads_and_prints_the_command_for_others(classifier):
    lines = run("prune", *classifier, "--strategy", "confidence", "--keep", 4, "--output", "a smaller").out.splitlines()
    assert lines[0].startswith("accuracy on the 12 training examples (they chose the heads): ")
    command = "headroles evaluate 'a smaller' CORPUS --metrics accuracy --study smaller-study"
    assert lines[1] == f"measure on others with {command}"
    words = ["films.tsv" if word == "CORPUS" else word for word in shlex.split(command)[1:]]
    assert run(*words).out.startswith("metrics on 12 sentences of films\n")


def test_prune_measures_on_held_out_examples_if_given(classifier):
    Path("other.tsv").write_text("".join(Path("films.tsv").read_text().splitlines(keepends=True)[:6]))
    held_out = ["--held-out", "other.tsv"]
    lines = run("prune", *classifier, "--strategy", "confidence", "--keep", 4, *held_out, "--output", "less").out
    values = [
        hr.evaluate(*hr.load(name), hr.read("other.tsv"), "accuracy", n_resamples=0) for name in ("model", "less")
    ]
    before, after = (table.loc["accuracy", "value"] for table in values)
    said = f"accuracy on 5 sentences of other: {before:.3f} before, {after:.3f} after, {after - before:+.3f} ["
    assert lines.startswith(said)
    end = run("prune", *classifier, "--keep", 4, *held_out, "--no-remove")
    assert end.err == "headroles: --held-out requires --remove\n"


def test_prune_says_how_many_heads_of_each_role_it_removes(classifier):
    assert "with a role" not in run("prune", *classifier, "--strategy", "random", "--keep", 4).out
    run("score", *classifier, "--resamples", 0)
    run("roles", "study", "--threshold", "positional=0.2", "--threshold", "sink=0.2")
    end = run("prune", *classifier, "--strategy", "random", "--keep", 4)
    roles, kept = hr.load_table("study/roles.parquet"), hr.load_table("study/survival-random.parquet").iloc[:, 0]
    counts = []
    for family in ("positional", "sink"):
        held = roles[[name for name in roles if name.startswith(f"{family}[") and name.endswith("]")]].any(axis=1)
        counts += [f"{(held & (kept == 0)).sum()} of {held.sum()} {family}"]
    assert all(int(text[0]) for text in counts)
    assert f"\npruned heads with a role: {', '.join(counts)}\n" in end.out


def test_prune_names_the_command_that_shows_what_lost_induction_heads_cost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hr.save(writing("gpt2"), tokens_of("gpt2"), "model")
    Path("text.txt").write_text("a b c\nd e f g\n" * 3)
    run("score", "model", "text.txt", "--study", "study", "--resamples", 0)
    run("roles", "study", "--threshold", "induction=0.0")
    given = ["model", "text.txt", "--strategy", "random", "--keep", 1, "--output", "less", "--study", "study"]
    (line,) = [
        line for line in run("prune", *given).out.splitlines() if "headroles evaluate" in line and "repeat" in line
    ]
    assert line.endswith("headroles evaluate less repeated-tokens --study repeated")
    assert "repeated once" in run(*shlex.split(line.partition("headroles ")[2])).out


def test_without_roles_the_nearest_head_is_named(capsys):
    index = frame.index({("enc-self", 0): 2})
    table = frame.table({"position[-1]": [0.1, 0.66], "rarity": [0.2, np.nan], "sink[first]": [0.4, 0.4]}, index, "a:1")
    nearest = "nearest: L0H1, 0.66 of 0.90 for previous token"
    assert printed(hr.roles(table), capsys) == [f"0 of 2 heads have a role; {nearest}"]


def test_costs_are_printed_the_largest_first_and_kept_as_they_are(capsys):
    values = {
        "ablation[bleu]": [0.5, -2.0, 0.0],
        "ablation[bleu].low": [0.1, -3.0, -1],
        "ablation[bleu].high": [1.0, -1, 1],
    }
    table = frame.table(values, frame.index({("enc-self", 0): 2, ("cross", 0): 1}), "corpus:c")
    with recording() as record:
        print_table(costs(table), PRINTED["ablation-"], {}, whole=table)
    title, _, _, *rows = cells(capsys.readouterr().out)
    assert title == ["effects on bleu, the 3 largest of 3 as costs: above 0 is harm"]
    assert rows[:3] == [
        ["enc-self L0H1", "2.000 [1.000, 3.000]"], ["cross L0H0", "0.000 [-1.000, 1.000]"],
        ["enc-self L0H0", "-0.500 [-1.000, -0.100]"],
    ]  # fmt: skip
    assert [row["ablation[bleu]"] for row in record.tables[0]["rows"]] == [0.5, -2, 0]


def test_a_declared_column_is_printed_with_its_interval(capsys):
    columns = {"heads": [8, 4], "value": [0.5, 0.6], "low": [0.4, 0.5], "high": [0.6, 0.7], "change": [0.0, 0.1]}
    words = {"strategy": "l0", "held_out": hr.Corpus("dev", ()), "better": "loss: smaller is better"}
    print_table(pd.DataFrame(columns), PRINTED["sparsity-"], words)
    title, _, _, *rows = cells(capsys.readouterr().out)
    assert title == ["l0 on dev; loss: smaller is better"]
    assert rows[:2] == [["8", "0.500 [0.400, 0.600]", "0.000"], ["4", "0.600 [0.500, 0.700]", "0.100"]]
