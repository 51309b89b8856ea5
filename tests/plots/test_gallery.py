"""Figures of a study are drawn again where what they show has changed, and replace nothing of others."""

from __future__ import annotations

import json
import re

import pytest
from helpers.commands import run

import headroles as hr
from headroles.papers.bench import Bench
from headroles.papers.reproduction import written
from headroles.tables import frame
from headroles.tables.io import save_table

INDEX = frame.index({("enc-self", 0): 4})


def refused(done, path, origin):
    said = f"headroles: {path} exists and is {origin}; name another file, or give --overwrite, which replaces it\n"
    assert (done.code, done.err) == (2, said)


@pytest.fixture
def study(tmp_path):
    made = hr.Study(tmp_path / "study")
    scores = frame.table({"entropy": [1.0, 2, 3, 4]}, INDEX, frame.sign(model="m", weights="abc"))
    save_table(scores, made.path("heads"))
    return made


@pytest.mark.slow
def test_a_report_is_replaced_by_one_of_the_same_model(study, tmp_path):
    page = tmp_path / "report.html"
    assert run("report", study.folder, "--output", page).code == run("report", study.folder, "--output", page).code == 0
    other = frame.table({"entropy": [1.0, 2, 3, 4]}, INDEX, frame.sign(model="m", weights="def"))
    save_table(other, study.path("heads"))
    refused(run("report", study.folder, "--output", page), page, "made from another model")
    assert run("report", study.folder, "--output", page, "--overwrite").code == 0
    page.write_text("<p>mine")
    refused(run("report", study.folder, "--output", page), page, "not known to be by headroles")
    assert page.read_text() == "<p>mine"


def test_pictures_in_a_study_that_are_not_ours_stay(study):
    mine, place = study.folder / "compare-pruning.png", study.folder / "heatmap-entropy.png"
    mine.write_bytes(b"a photograph")
    hr.plot(study)
    assert hr.plot(study) == [place]
    assert mine.read_bytes() == b"a photograph"  # `plot` may write a file of that name
    place.write_bytes(b"a photograph")
    with pytest.raises(FileExistsError, match=f"^{re.escape(str(place))} exists and is not known to be by headroles"):
        hr.plot(study)
    assert place.read_bytes() == b"a photograph"


@pytest.mark.slow
def test_figures_are_drawn_again_where_what_they_show_has_changed(study):
    place = study.folder / "heatmap-entropy.png"
    hr.plot(study)
    first = place.stat().st_mtime_ns, place.read_bytes()
    hr.plot(study)
    assert (place.stat().st_mtime_ns, place.read_bytes()) == first  # an unchanged one stays
    place.write_bytes(first[1][:-20])
    hr.plot(study)
    assert place.read_bytes() == first[1]  # a damaged one does not
    hr.plot(hr.Study(study.folder, overwrite=True))
    assert place.stat().st_mtime_ns > first[0]
    other = frame.table({"entropy": [1.0, 2, 3, 5]}, INDEX, frame.sign(model="m", weights="abc"))
    save_table(other, study.path("heads"))
    hr.plot(study)
    assert place.read_bytes() != first[1]
    assert hr.plot(study) == [place]


@pytest.mark.slow
def test_artefacts_of_other_studies_are_not_replaced(study, tmp_path):
    place = tmp_path / "made"
    written(Bench([study.folder], None), place, "voita2019", "fig6")  # of a formula
    told = place / "papers/voita2019/fig6.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | {"tables": ["other/heads.parquet"]}))
    before = told.read_bytes()
    with pytest.raises(FileExistsError, match="of other studies: fig6 is of other, these are of study; "):
        written(Bench([study.folder], None), place, "voita2019", "fig6")
    assert told.read_bytes() == before
    written(Bench([study.folder], None), place, "voita2019", "fig6", overwrite=True)
    assert told.read_bytes() != before
