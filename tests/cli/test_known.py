"""A name that nobody knows, and an option that is not read, are refused before PyTorch is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.commands import files, run
from helpers.messages import line

import headroles as hr
from headroles.analysis.role_rules import ROLES
from headroles.cli.commands import COMMANDS
from headroles.cli.known import (
    GATES,
    STRATEGIES,
    Need,
    check_read,
    check_typed,
    kinds,
    metrics,
    roles,
    rules,
    scores,
)
from headroles.pruning.rankings import NAMED
from headroles.scores.lrp.context import RULES
from headroles.scores.objectives import OBJECTIVES
from headroles.tables.frame import KINDS

REFUSED = {
    "scores": ("confidence,sintax", "unknown score 'sintax'; did you mean 'syntax'; known: alignment, "),
    "metric": ("blue", "unknown metric 'blue'; did you mean 'bleu'; known: loss, "),
    "metrics": ("loss,los", "unknown metric 'los'; did you mean 'loss'; known: loss, "),
    "rules": ("cp,atn", "unknown rule set 'atn'; did you mean 'attn'; known: cp, "),
    "kinds": ("encself", "unknown kind of heads 'encself'; did you mean 'enc-self'; known: enc-self, dec-self, cross$"),
    "thresholds": (["positonal=0.8"], "unknown role 'positonal'; did you mean 'positional'; known: alignment, "),
    "strategy": ("importence", "unknown strategy 'importence'; did you mean 'importance'; known: importance, "),
    "strategies": ("l0,-effect,-l0", "unknown strategy '-l0'; did you mean 'l0'; known: importance, "),
}
HEADS = {  # of MiniLM, which has 6 layers x 12 heads
    "enc-self 9 99": "no head 'enc-self 9 99': expected kind:layer:head; try enc-self:9:99",
    "encself:0:1": "unknown kind of heads 'encself'; did you mean 'enc-self'; known: enc-self, dec-self, cross",
    "enc-self:0:1,enc-self:9:99": "no head 'enc-self:9:99' in minilm: got layer 9; expected 0 to 5",
    "L5H12": "no head 'L5H12' in minilm: got head 12; expected 0 to 11",
}


def test_the_names_are_those_of_the_library():
    ours = [name for name, cls in hr.list_scores().items() if cls.__module__.startswith("headroles.")]
    assert scores() == ours
    assert metrics() == list(dict.fromkeys([*hr.list_metrics(), *OBJECTIVES]))
    assert [*STRATEGIES, *GATES] == [*NAMED, "l0", "exactly"]
    assert (rules(), kinds(), roles()) == ([*RULES], [*KINDS], sorted(role.name for role in ROLES))
    check_typed({"strategies": "-effect,random per layer,l0", "kinds": "cross", "thresholds": ["sink=0.1", "sink"]})
    check_typed({"scores": ",".join(ours), "metric": "bleu-zh", "metrics": " loss, top ", "model": "minilm"})


@pytest.mark.parametrize("parameter", REFUSED)
def test_a_wrong_name_is_refused_with_the_similar_one(parameter):
    typed, message = REFUSED[parameter]
    with pytest.raises(ValueError, match=f"^{message}"):
        check_typed({parameter: typed})


@pytest.mark.parametrize("parameter", ["heads", "alone"])
@pytest.mark.parametrize("typed", HEADS)
def test_a_head_that_the_config_excludes_is_refused(parameter, typed):
    with pytest.raises(ValueError, match=f"^{HEADS[typed]}$"):
        check_typed({parameter: typed, "model": "minilm"})


@pytest.mark.parametrize(
    "config",
    [
        None,
        "no JSON",
        "[]",
        '{"num_hidden_layers": [1]}',
        '{"num_hidden_layers": 1, "headroles": {}}',
        '{"num_hidden_layers": 1, "text_config": {"num_hidden_layers": 9}}',
    ],
)
def test_heads_that_a_config_does_not_exclude_are_left_to_the_model(config, tmp_path):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    for model in (str(tmp_path), "no/such/model", "no-such-model", None):
        check_typed({"heads": "enc-self:5:11,L0H3", "alone": None, "model": model})


def test_a_file_in_place_of_a_model_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("A text.\n")
    with pytest.raises(OSError, match="^could not load .*: got a file; expected a folder or a hub id; try the folder"):
        check_typed({"model": str(path)})
    check_typed({"model": str(tmp_path)})


def test_a_wrong_name_is_refused_without_pytorch(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("A text.\n")
    code = (
        f"import sys; from headroles.cli.main import main; sys.argv = ['headroles', 'score', 'minilm', {str(text)!r}, "
        "'--scores', 'sintax', '--study', 'none']\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("headroles: unknown score 'sintax'; did you mean 'syntax'; known: alignment, ")
    assert not (tmp_path / "none").exists()


SWEEP = "labels.tsv --held-out labels.tsv"
UNREAD = [
    ("score none text.txt --scores confidence,importance --rules attn",
     "--rules is not read: got --scores confidence,importance; expected --scores relevance; try without --rules"),
    ("score none text.txt --max-residue 0.001",
     "--max-residue is not read: got no --scores; expected --scores relevance; try without --max-residue"),
    ("score none text.txt --reference-target text.txt",
     "--reference-target is not read: got no --reference; expected --reference; try without --reference-target"),
    ("train none labels.tsv --output new --held-out-target text.txt",
     "--held-out-target is not read: got no --held-out; expected --held-out; try without --held-out-target"),
    ("prune none text.txt --gate-rate 0.5",
     "--gate-rate is not read: got --strategy importance; expected --strategy l0 or exactly; try without --gate-rate"),
    ("prune none text.txt --strategy -importance --freeze all",
     "--freeze is not read: got --strategy -importance; expected --strategy l0 or exactly; try without --freeze"),
    ("prune none text.txt --role-scores none.parquet",
     "--role-scores is not read: got --strategy importance; expected --strategy roles; try without --role-scores"),
    (f"sparsity-sweep none {SWEEP} --role-scores none.parquet",
     "--role-scores is not read: got --strategy l0; expected --strategy roles; try without --role-scores"),
    (f"compare-pruning none {SWEEP} --strategies importance,random --gate-rate 0.5",
     "--gate-rate is not read: got --strategies importance,random; expected --strategies l0 or exactly; try without "
     "--gate-rate"),
    *(
        (f"prune none text.txt --{name} {value}",
         f"--{name} is not read: got no --train, --strategy importance; expected --train, or --strategy l0 or exactly; "
         f"try without --{name}")
        for name, value in {
            "epochs": 7, "batch": 2, "rate": 0.5, "length": 9, "warmup": 5, "smoothing": 0.3, "sampling": "random",
        }.items()
    ),
    ("cache-budget none text.txt --by random --steps 7",
     "--steps is not read: got --by random; expected --by l0; try without --steps"),
    ("cache-budget none text.txt --by ablation --points 9",
     "--points is not read: got --by ablation; expected --by integrated-gradients or l0 or retrieval or random; try "
     "without --points"),
    ("cache-budget none text.txt --haystack text.txt",
     "--haystack is not read: got CORPUS text.txt; expected CORPUS hidden-facts; try without --haystack"),
    ("check-model --config none --cls AutoModel",
     "--cls is not read: got no MODEL; expected MODEL; try without --cls"),
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
        f"compare-pruning folder {SWEEP} --gate-rate 0.5 --epochs 2",
        "cache-budget folder text.txt --by l0 --steps 7 --points 9",
        "check-model folder --cls AutoModel --allow-random",
    ],
)
@pytest.mark.usefixtures("place")
def test_an_option_that_is_read_is_accepted(command):
    end = run(*command.split())
    assert (end.code, end.err.startswith("headroles: could not load 'folder'")) == (2, True), end.err


def test_needs_are_of_options_of_their_command():
    for command in (command for commands in COMMANDS.values() for command in commands):
        names = {parameter.name for parameter in command.parameters()}
        for need in command.needs:
            assert {*need.options} <= names
            assert {*need.where} & names


def test_one_of_several_options_is_enough():
    need = Need(("rate",), {"train": (), "strategy": ("l0",)})
    prune = next(command for command in COMMANDS["Prune"] if command.name == "prune")
    parameters = [part for part in prune.parameters() if part.name in ("rate", "train", "strategy")]
    for train, strategy in (("after", "top"), (None, "l0")):
        check_read([need], {"rate": 1.0, "train": train, "strategy": strategy}, parameters)
    with pytest.raises(ValueError, match="^rate= is not read: got no train=, strategy='top'; expected train=, or "):
        check_read([need], {"rate": 1.0, "train": None, "strategy": "top"}, parameters)


def test_an_option_that_is_not_read_is_refused_without_pytorch(tmp_path):
    code = (
        "import sys; from headroles.cli.main import main\n"
        f"sys.argv = ['headroles', 'prune', 'none', 'none', '--warmup', '5', '--study', {str(tmp_path / 'new')!r}]\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert "--warmup is not read" in done.stderr
