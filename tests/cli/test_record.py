"""What a command printed is kept as numbers."""

from __future__ import annotations

from headroles.cli.record import recording


def test_missing_numbers_are_null(study, capsys):
    with recording(quiet=True) as record:
        record.keep(study.load("heads"), "title")
    values = [row["confidence"] for row in record.tables[0]["rows"]]
    assert values == [0.9, 0.5, None, 0.25]
    assert capsys.readouterr() == ("", "")
