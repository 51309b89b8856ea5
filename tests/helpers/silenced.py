"""Heads that are zero, or a constant, in a plain loop of transformers."""

from __future__ import annotations

from contextlib import contextmanager


@contextmanager
def silenced(projection, columns, value=0):
    """Columns of the input of a projection are zero, or this, within the block."""

    def silence(_, args):
        z = args[0].clone()
        z[..., columns] = value
        return (z, *args[1:])

    hook = projection.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()
