"""A name that nobody knows is refused before PyTorch is loaded; the names are those of the library."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headroles as hr
from headroles.cli.known import check_typed, metrics, scores
from headroles.scores.objectives import OBJECTIVES

REFUSED = {
    "scores": ("confidence,sintax", "unknown score 'sintax'; did you mean 'syntax'; known: alignment, "),
    "metric": ("blue", "unknown metric 'blue'; did you mean 'bleu'; known: loss, "),
    "metrics": ("loss,los", "unknown metric 'los'; did you mean 'loss'; known: loss, "),
}


def test_the_names_are_those_of_the_library():
    ours = [name for name, cls in hr.list_scores().items() if cls.__module__.startswith("headroles.")]
    assert scores() == ours
    assert metrics() == list(dict.fromkeys([*hr.list_metrics(), *OBJECTIVES]))
    check_typed({"scores": ",".join(ours), "metric": "bleu-zh", "metrics": " loss, top ", "model": "minilm"})


@pytest.mark.parametrize("parameter", REFUSED)
def test_a_wrong_name_is_refused_with_the_similar_one(parameter):
    typed, message = REFUSED[parameter]
    with pytest.raises(ValueError, match=f"^{message}"):
        check_typed({parameter: typed})


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
