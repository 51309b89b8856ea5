"""What analysis refuses: the call, and the subject and the value that the message names; all are ValueErrors."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from helpers.errors import refuses
from helpers.relations import ROLES, effects, index, told

import headroles as hr
from headroles.analysis import role_rules
from headroles.analysis.role_rules import Role, roles
from headroles.analysis.summaries import agreement, correlations, score_correlations
from headroles.tables import frame

EIGHT = index(layers=1)
RARE, LOSS = told(EIGHT, rarity=[1, 0] * 4), effects(EIGHT, loss=range(8))
SCORES = frame.table({"confidence": range(8), "survival[x]": [0.0, 1] * 4}, EIGHT, "s")
INFINITE = effects(EIGHT, loss=[0, 1, math.inf, 3, 4, 5, 6, 7])
TWICE = [pd.concat([table, table.iloc[:1]]) for table in (RARE, LOSS)]
RATE = {"rate": [2.0], "rate.low": [1.0], "rate.high": [3.0]}
SYNTAX = "syntax[nsubj dep>head]"


def table(**columns):
    size = len(next(iter(columns.values())))
    return frame.table(columns, frame.index({("enc-self", 0): size}), "score:s")


def one_and_other(first, second):
    """Two columns of these heads, of one model of 96 and of another with other layers."""
    many = frame.index({(kind, layer): 8 for kind in frame.KINDS for layer in range(4)})
    elsewhere = frame.index({(kind, layer): 8 for kind in ("enc-self", "dec-self") for layer in range(6)})
    columns = [pd.Series(np.random.default_rng(0).normal(size=96), where) for where in (many, elsewhere)]
    return columns[0].iloc[first], columns[second is None].iloc[second or slice(None)]


REFUSED = {
    "roles of other heads": (
        lambda: hr.relate(RARE, effects(index(layers=2), loss=range(16))),
        "roles and outcomes are of different heads: got 8 and 16 rows, 8 in common; expected the same heads",
    ),
    "roles of other kinds": (
        lambda: hr.relate(RARE, effects(index(layers=1, kinds=("cross",)), loss=range(8))), "got 8 and 8 rows, 0 in co",
    ),
    "heads in several rows": (lambda: hr.relate(*TWICE), r"counted twice: got \('enc-self', 0, 0\) in several rows"),
    "a word of no outcome": (
        lambda: hr.relate(RARE, LOSS, columns=["ablation[bleu]"]),
        r"outcome must be one of ablation\[loss\], got 'ablation\[bleu\]'; try 'ablation\[loss\]'",
    ),
    "no outcome": (
        lambda: hr.relate(RARE, frame.only(SCORES, ["confidence"])),
        "outcomes must have columns of ablation, .*, survival, got confidence; make them with hr.ablate",
    ),
    "an end as outcome": (
        lambda: hr.relate(RARE, frame.table({"confidence.low": range(8)}, EIGHT, "s")), "outcomes must .*, got none; m",
    ),
    "effects as roles": (lambda: hr.relate(LOSS, LOSS), r"not a table of roles: expected columns \.stability"),
    "by kind": (lambda: hr.relate(RARE, LOSS, by="kind"), "by must be one of family, variant, got 'kind'"),
    "an absent kind": (lambda: hr.relate(RARE, LOSS, kinds=["cross"]), "kind must be one of enc-self, got 'cross'"),
    "an infinite outcome": (
        lambda: hr.relate(RARE, INFINITE), r"'ablation\[loss\]' must be finite, .*, got an infinite .* head enc-self:0",
    ),
    "an infinite score": (
        lambda: hr.predict_outcome(INFINITE, SCORES, columns=["ablation[loss]"]), "must be finite, .* head enc-self:0:",
    ),
    "an infinite column": (
        lambda: correlations(INFINITE["ablation[loss]"], SCORES["confidence"]), "must be finite, .* head enc-self:0:2",
    ),
    "no survival": (lambda: hr.predict_outcome(SCORES, LOSS), r"survival\[\.\.\.\], got ablation\[loss\]"),
    "no predictor": (
        lambda: hr.predict_outcome(SCORES, LOSS, outcome_columns=["ablation[loss]"], columns=["nothing"]),
        "scores must have nothing, got confidence",
    ),
    "heads that came back": (
        lambda: hr.role_changes(told(index(layers=1, many=2), rarity=[1, 0]), RARE),
        "heads after pruning must be among those before, got enc-self:0:2",
    ),
    "models of other shapes": (
        lambda: hr.compare_models(table(rarity=[1.0] * 6), table(rarity=[1.0] * 5)), "got 6 and 5 rows, 5 in common; e",
    ),
    "no common score": (
        lambda: hr.compare_models(table(entropy=[1.0]), table(rarity=[1.0])), "a common score, got entropy and rarity",
    ),
    "a threshold of no role": (
        lambda: roles(table(rarity=[0.5]), thresholds={"rarity": 0.4}), "role must be .*, got 'rarity'; try 'rare'",
    ),
    "no column of a role": (
        lambda: roles(table(confidence=[0.5], entropy=[0.5])), "columns of roles, .*, got confidence, entropy",
    ),
    "no baseline": (lambda: roles(table(**{SYNTAX: [0.5]})), r"role 'syntactic' needs column 'syntax.*\.baseline'"),
    "no margin": (
        lambda: role_rules.margins(table(entropy=[0.5]), ["rare", "sink"]), "columns of rare, sink, got entropy",
    ),
    "no resamples": (
        lambda: roles(table(rarity=[0.2, 0.7]), ROLES, test=True), "rarity must have resamples to be tested",
    ),
    "no resamples of a rate": (
        lambda: roles(table(**RATE), [Role("r", "rate", 5)], test=True),
        "rate must have resamples to be tested",
    ),
    "no tests": (lambda: hr.analysis.role_decisions(RARE), "roles must have tests, got rare, rare.value, .*; make"),
    "one model": (lambda: hr.stability([SCORES]), "tables must be of two or more models, got 1"),
    "models of other heads": (
        lambda: hr.stability({"a": SCORES, "b": SCORES[:4]}), "tables 'a' and 'b' are of different heads: got 8 and 4",
    ),
    "matched by kind": (lambda: hr.stability([], match="kind"), "match must be one of layer, same, got 'kind'"),
    "some pairs": (lambda: hr.stability([], pairs="some"), "pairs must be one of all, next, got 'some'"),
    "heads by an absent score": (
        lambda: hr.stability([SCORES] * 2, columns=["x"]), "columns must be some of confidence, .*, got x",
    ),
    "scores that are all alike": (
        lambda: hr.stability([table(entropy=[1.0] * 4)] * 2), "score must vary over the enc-self .*, got entropy; try",
    ),
    **{
        f"columns of {sizes}": (lambda given=given: correlations(*one_and_other(*given)), f"got {sizes} in common")
        for sizes, given in {
            "96 and 40 rows, 40": (slice(None), slice(40)),
            "40 and 96 rows, 40": (slice(40), slice(96)),
            "50 and 56 rows, 10": (slice(50), slice(40, 96)),
            "96 and 96 rows, 64": (slice(None), None),
        }.items()
    },
    "one score": (lambda: score_correlations(SCORES, ["confidence"]), "two or more of confid.*, got confidence"),
    "an absent score": (lambda: score_correlations(SCORES, ["confidence", "x"]), "more of .*, got confidence, x"),
    "an absent column": (lambda: agreement(SCORES, ["x"], "confidence"), "some of confidence.*, got x; try hr.join"),
}  # fmt: skip

test_analysis_refusals = refuses(REFUSED)
