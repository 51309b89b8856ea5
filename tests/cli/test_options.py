"""Options that cannot be are refused before work is done."""

from __future__ import annotations

import inspect
import operator
from types import SimpleNamespace
from typing import get_args

import pytest
import typer
from helpers import planted
from helpers.commands import files, run
from helpers.messages import line

import headroles as hr
from headroles.cli import commands, main, options
from headroles.cli.commands import COMMANDS
from headroles.cli.options import REQUIRED, signature

FORM = "not of the form kind:layer:head, such as enc-self:0:2, or L0H2 where a model has one kind of heads"
UNKNOWN = (
    "artefact must be one of fig1a, fig1b, fig1c, fig2, fig3, fig4, table1, fig5, rare, fig6, fig7, fig8, fig9, fig10, "
    "table2, gates, got 'fig99'; try 'fig9'"
)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("remove-heads none L0 --output new", f"head 'L0' is {FORM}"),
        ("report study --output folder", "folder is a folder; name a file in it"),
        ("train none labels.tsv --output study",
         "study is a study: it holds heads.parquet; name another folder for the model"),
        ("train none labels.tsv --output text.txt", "cannot write into folder text.txt: Not a directory; name another"),
        ("relate study study --study new",
         "no table 'roles' in study; there are: heads; make it with headroles roles study"),
        ("reproduce voita2019 fig99 --model none --data none", UNKNOWN),
        ("ablation-curve model text.txt --study study --by ablation[loss] --kind cross",
         "no heads of kind 'cross' to order: got a table of enc-self; expected one of its kinds"),
        ("sparsity-sweep none labels.tsv --held-out labels.tsv --gate-rate -1 --study new",
         "--gate-rate must be a number > 0, got -1.0"),
        ("sparsity-sweep none labels.tsv --held-out labels.tsv --strategy roles --role-scores study/heads.parquet",
         "study/heads.parquet has no scores of roles, got ablation[loss]; try heads.parquet of headroles score"),
        ("sparsity-sweep none labels.tsv --held-out labels.tsv --keep x --study new",
         "expected numbers separated by commas, such as 0.5,0.25, got 'x'"),
        ("sparsity-sweep model text.txt --held-out text.txt --study new",
         "the model must classify or predict tokens, got BertModel; try headroles train, or "
         "headroles.load_classifier(name, corpus) in Python, which adds a classification head, or a class that "
         "predicts tokens, such as --cls AutoModelForMaskedLM"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(place, command, message):
    before = files(place)
    end = run(*command.split())
    assert (end.code, end.out) == (2, "")
    assert end == line(message) if message else end.err.count("\n") == 1
    assert files(place) == before


def test_numbers_below_one_are_refused_by_name(place):
    prune = ["compare-pruning", "model", "labels.tsv", "--held-out", "labels.tsv", "--scored", "0"]
    for command, option in (
        (prune, "--scored"),
        (["score", "model", "text.txt", "--max-tokens", "0"], "--max-tokens"),
        (["score", "model", "text.txt", "--limit", "-3"], "--limit"),
    ):
        end = run(*command)
        assert (end.code, end.out) == (2, "")
        assert f"'{option}'" in end.err
        assert not (place / "new").exists()


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
    assert end == line("metric 'bleu' needs a translation model; BertForSequenceClassification writes none")
    assert not (place / "new").exists()


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
    refused = run("ablate", tmp_path / "model", "repeated-tokens", "--chat", *options)
    assert refused == line("--chat is of a corpus that is read: got repeated-tokens; expected a file")


SWEEP = "labels.tsv --held-out labels.tsv"
UNREAD = [
    ("score none text.txt --scores confidence,importance --rules attn", "--rules requires --scores relevance"),
    ("score none text.txt --max-residue 0.001", "--max-residue requires --scores relevance"),
    ("score none text.txt --reference-target text.txt", "--reference-target requires --reference"),
    ("prune none text.txt --gate-rate 0.5", "--gate-rate requires --strategy l0 or exactly"),
    ("prune none text.txt --strategy -importance --freeze all", "--freeze requires --strategy l0 or exactly"),
    ("prune none text.txt --warmup 5", "--warmup requires --train, or --strategy l0 or exactly"),
    (f"sparsity-sweep none {SWEEP} --role-scores none.parquet", "--role-scores requires --strategy roles"),
    (f"compare-pruning none {SWEEP} --strategies importance,random --gate-rate 0.5",
     "--gate-rate requires --strategies l0 or exactly"),
    ("cache-budget none text.txt --by random --steps 7", "--steps requires --by l0"),
    ("cache-budget none text.txt --haystack text.txt", "--haystack requires CORPUS hidden-facts"),
    ("check-model --config none --cls AutoModel", "--cls requires MODEL"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "message"), UNREAD)
def test_an_option_that_is_not_read_is_refused(place, command, message):
    before = files(place)
    assert run(*command.split()) == line(message)
    assert files(place) == before


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
            assert {*rule.options} <= names
            assert {*rule.beside} & names


@pytest.mark.usefixtures("place")
def test_a_head_of_a_model_with_one_kind_needs_no_kind():
    assert run("remove-heads", "model", "L0H2,enc-self:1:3", "--output", "new").code == 0
    kept = hr.models.head_index(hr.load("new")[0])
    assert [head for head in hr.models.head_index(planted.model()) if head not in kept] == [
        ("enc-self", 0, 2),
        ("enc-self", 1, 3),
    ]


def test_a_head_of_a_model_with_several_kinds_needs_its_kind():
    from helpers import zoo

    with pytest.raises(ValueError, match=r"^head 'L0H1' has no kind: got a model with enc-self, dec-self, cross; try "):
        hr.remove_heads(zoo.tiny("marian"), "L0H1")


@pytest.mark.parametrize("text", ["L0", "0:1", "magic:0:1", "L0H1 L0H2", ""])
def test_other_writing_is_refused(text):
    with pytest.raises(ValueError, match=f"^head '{text}' is not of the form kind:layer:head, such as enc-self:0:2"):
        hr.head_mask(planted.model(), [text])


BY_NAME = {command.name: command for commands in COMMANDS.values() for command in commands}
PARSED = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]


def function_of(name):
    return operator.attrgetter(BY_NAME[name].function)(hr)


def test_a_command_has_the_name_of_its_function_and_there_are_at_most_twenty():
    assert len(BY_NAME) <= 20
    assert [name.replace("-", "_") for name in PARSED] == [*BY_NAME]
    for name in BY_NAME:
        assert inspect.unwrap(function_of(name)).__name__ == name


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
