"""Each check can fail, and says what it claims."""

from __future__ import annotations

import re
from functools import partial

import architectures
import pytest
import torch
from helpers.checking import built

import headroles as hr
from headroles.ablation.sweep import Sweep
from headroles.models import attention_hooks, heads, masking
from headroles.scores.lrp import rules
from headroles.testing import CHECKS, checks

# --- each check can fail --------------------------------------------------------------------------------------------


def eager(change):
    """A fault: captured attention is not the attention that the model computes."""
    own = attention_hooks.eager

    return attention_hooks, "eager", lambda module: partial(change, own(module))


def wider(attend, *args, **kwargs):
    out, weights = attend(*args, **kwargs)
    return out, weights * 1.01


def unmasked(attend, module, query, key, value, _, **kwargs):
    return attend(module, query, key, value, None, **kwargs)


def mixing(change):
    """A fault in the product of gates and outputs of heads."""
    own = masking._mix
    return masking, "_mix", lambda z, g, instead: change(own, z, g, instead)


def removing_another(model, heads, **options):
    return hr.remove_heads(model, [(kind, layer, (head + 1) % 4) for kind, layer, head in heads], **options)


FAULTS = {
    "sites": lambda: (heads, "discover_sites", lambda *given, own=heads.discover_sites: own(*given)[:-1]),
    "rows": lambda: eager(wider),
    "sums": lambda: eager(wider),
    "confidence": lambda: eager(wider),
    "masks": lambda: eager(unmasked),
    "identity": lambda: mixing(lambda own, z, g, instead: own(z, g, instead) * 1.0001),
    "zero": lambda: mixing(lambda own, z, g, instead: own(z, g.roll(1, -1), instead)),
    "batched": lambda: mixing(lambda own, z, g, instead: own(z, g.flip(0) if g.ndim == 2 else g, instead)),
    "effects": lambda: (Sweep, "_gates", lambda sweep, sets: torch.ones(len(sets), len(sweep.model.index))),
    "loss": lambda: (checks, "evaluate", lambda *given, own=checks.evaluate, **options: own(*given, **options) * 1.01),
    "generation": lambda: mixing(lambda own, z, g, instead: own(z, g, instead) if z.shape[1] > 1 else z),
    "forward": lambda: (rules, "whole", lambda func, x, *args, **kwargs: func(x, *args, **kwargs) * 1.001),
    "conserved": lambda: (rules, "halves", lambda func, *args, **kwargs: func(*args, **kwargs)),
    "slopes": lambda: (masking.Gate, "backward", staticmethod(partial(twice, masking.Gate.backward))),
    "chosen": lambda: (
        checks, "prune", lambda *given, **options: hr.prune(*given[:-1], f"-{given[-1]}", **options)
    ),
    "cut": lambda: (checks, "remove_heads", removing_another),
}  # fmt: skip


def twice(own, ctx, c):
    back, felt = own(ctx, c)
    return back, None if felt is None else 2 * felt


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_a_fault_fails_its_check(check, monkeypatch):
    monkeypatch.setattr(*FAULTS[check]())
    monkeypatch.setattr("headroles.testing.runner.CHECKS", {check: CHECKS[check]})
    found = hr.check_model(built("llama, grouped"))
    assert found["holds"][check] == "no"
    assert found["off"][check] > found["allowed"][check]
    claim = CHECKS[check].check.__doc__.splitlines()[0].removeprefix("Check that ")
    assert found["why"][check] == f"{found['off'][check]:.2g} off, {CHECKS[check].allowed:.2g} allowed: {claim}"


def test_checks_are_unique_and_document_their_claims():
    for check in CHECKS.values():
        assert re.fullmatch(r"Check that .*\.", check.check.__doc__.splitlines()[0])
        assert check.area in architectures.AREAS
    functions = {check.check for check in CHECKS.values()}
    assert len(functions) == len(CHECKS)
    assert {checks.sites, checks.zero, checks.cut} <= functions


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "holds"), [(1e-6, "yes"), (1e-2, "not asked")])
def test_reloading_may_be_off_by_rounding_only(noise, holds, monkeypatch):
    """Loaded weights have another place in memory: products may be added in another order."""
    own = checks._saved

    def noisy(case, build):
        before, after = own(case, build)
        return before, after * (1 + noise)

    monkeypatch.setattr(checks, "_saved", noisy)
    monkeypatch.setattr("headroles.testing.runner.CHECKS", {"cut": CHECKS["cut"]})
    assert hr.check_model(built("llama"))["holds"].to_dict() == {"cut": holds}
