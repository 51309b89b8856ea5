"""Options that cannot be are refused before work is done."""

from __future__ import annotations

import inspect
import operator
from types import SimpleNamespace
from typing import get_args

import pytest
import typer
from helpers import planted
from helpers.commands import run
from helpers.messages import line

import headroles as hr
from headroles.cli import commands, main, options
from headroles.cli.commands import COMMANDS
from headroles.cli.options import REQUIRED, signature


@pytest.mark.parametrize("command", ["sparsity-sweep", "compare-pruning"])
def test_what_cannot_be_measured_is_said_before_training(command, place, monkeypatch):
    import torch
    import transformers

    torch.manual_seed(0)
    classifier = transformers.BertForSequenceClassification(planted.model().config)
    hr.save(classifier, planted.tokenizer(), place / "classifier")
    monkeypatch.setattr("headroles.training.trainer.fit", lambda *_: pytest.fail("trained before"))
    few = ["--held-out", "labels.tsv", "--study", "new"]
    end = run(command, "classifier", "labels.tsv", *few, "--metric", "bleu")
    assert end == line("metric 'bleu' needs a translation model, got BertForSequenceClassification")
    assert not (place / "new").exists()


@pytest.mark.slow
def test_repeated_tokens_are_a_corpus_by_their_name(tmp_path):
    """Others than those on which `score` assigns the role induction."""
    tokenizer = hr.load("minilm")[1]
    model = hr.tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=41)
    hr.save(model, tokenizer, tmp_path / "model")
    options = ("--limit", 3, "--resamples", 2, "--study", tmp_path / "study")
    done = run("ablate", tmp_path / "model", "repeated-tokens", *options)
    assert done.code == 0, done.err
    texts = hr.repeated_tokens(tokenizer, 3, length=20, seed=1)  # twice, and a BOS
    expected = hr.ablate(*hr.load(tmp_path / "model"), texts, n_resamples=2)
    found = hr.Study(tmp_path / "study").load("ablation-loss-head-zero")
    assert found["ablation[loss]"].tolist() == pytest.approx(expected["ablation[loss]"].tolist())


@pytest.mark.parametrize(
    "command",
    [
        "score folder text.txt --scores confidence,relevance --rules attn --max-residue 0.1",
        "score folder text.txt --rules cp",  # the default
        "score folder text.txt --reference text.txt --reference-target text.txt",
        "prune folder text.txt --strategy l0 --gate-rate 0.5 --freeze all --epochs 2 --smoothing 0.1",
        "prune folder text.txt --train after --epochs 2 --rate 0.5 --sampling random",
        "cache-budget folder text.txt --by l0 --steps 7 --points 9",
        "check-model folder --cls AutoModel --allow-random",
    ],
)
@pytest.mark.usefixtures("place")
def test_an_option_that_is_read_is_accepted(command):
    end = run(*command.split())
    assert (end.code, end.err.startswith("headroles: could not load 'folder'")) == (2, True), end.err


def test_rules_are_of_options_of_their_command():
    for command in (command for group in COMMANDS.values() for command in group):
        names = {parameter.name for parameter in command.parameters()}
        for rule in command.rules:
            assert {*rule[0]} <= names
            assert {*rule[1]} & names


BY_NAME = {command.name: command for commands in COMMANDS.values() for command in commands}
PARSED = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]


def function_of(name):
    return operator.attrgetter(BY_NAME[name].function)(hr)


def test_a_command_has_the_name_of_its_function_and_there_are_at_most_twenty():
    assert len(BY_NAME) <= 20
    assert [name.replace("-", "_") for name in PARSED] == [*BY_NAME]
    for name in BY_NAME:
        assert inspect.unwrap(function_of(name)).__name__ == {"export": "export_model"}.get(name, name)


def test_the_help_fits_a_screen():
    assert len(run("--help").out.splitlines()) <= 40


@pytest.mark.parametrize("name", BY_NAME)
def test_a_signature_read_from_the_source_is_that_of_the_function(name):
    function = inspect.unwrap(function_of(name))
    parameters = dict(inspect.signature(function).parameters)
    read = signature(BY_NAME[name].function)
    assert (function.__doc__ or "").startswith(read.summary.removesuffix("."))
    assert [*read.parameters] == [
        one for one in parameters if parameters[one].kind is not inspect.Parameter.VAR_KEYWORD
    ]
    for key, parameter in read.parameters.items():
        default = parameters[key].default
        if parameter.default is not options.UNKNOWN:
            assert parameter.default is (REQUIRED if default is inspect.Parameter.empty else parameter.default)
            assert default is inspect.Parameter.empty or parameter.default == default
        assert parameter.help


@pytest.mark.parametrize("name", BY_NAME)
def test_an_option_has_the_default_of_its_parameter(name):
    command = BY_NAME[name]
    read = signature(command.function).parameters
    for option in PARSED[name.replace("_", "-")].params:
        if option.name in command.defaults or option.name in ("study", "model", "overwrite") or option.name not in read:
            continue
        expected = read[option.name].default
        expected = ",".join(map(str, expected)) if isinstance(expected, tuple) else expected
        if expected not in (REQUIRED, options.UNKNOWN) and option.name not in ("folders",):
            assert option.default == expected, option.name


def test_a_literal_alias_is_followed_to_where_it_stands():
    from headroles.ablation.effects import Unit
    from headroles.ablation.sweep import Word
    from headroles.pruning.removal import Groups

    read = {name: signature(name).parameters for name in ("ablate", "remove_heads", "relate")}
    assert read["ablate"]["unit"].choices == get_args(Unit)
    assert read["ablate"]["replacement"].choices == get_args(Word)
    assert read["remove_heads"]["groups"].choices == get_args(Groups)
    assert read["relate"]["kinds"].types == ("Sequence[Literal('enc-self', 'dec-self', 'cross')]", "None")
    with pytest.raises(LookupError, match=r"^no 'nothing' in headroles$"):
        signature("nothing")


def test_rules_and_residue_make_a_relevance_for_each_rule_set_in_its_place():
    given = {"scores": "relevance,confidence", "rules": "cp,attn", "max_residue": 0.3}
    call = SimpleNamespace(given=given, arguments={})
    commands._with_rules(call)
    first, second, third = call.arguments["scores"]
    assert (first.rules, first.max_residue, second.rules, third) == ("cp", 0.3, "attn", "confidence")
