"""What a block may leave in a model: hooks, attention implementations, modes."""

from __future__ import annotations

from helpers import zoo

NAMES = [name for name in zoo.EXPECTED if zoo.EXPECTED[name] and name != "prophetnet"]


def _traces(model):
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    names = [m.config._attn_implementation for m in model.modules() if hasattr(m, "config")]
    return hooks, names, [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
