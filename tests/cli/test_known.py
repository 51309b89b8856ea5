"""A name that nobody knows is refused before PyTorch is loaded; the names are those of the library."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headroles as hr
from headroles.analysis.role_rules import ROLES
from headroles.cli.known import GATES, STRATEGIES, check_typed, kinds, metrics, roles, rules, scores
from headroles.pruning.rankings import NAMED
from headroles.scores.lrp.composites import RULES
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
    check_typed({"heads": 8, "model": None})  # of `replicate`: their number


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
