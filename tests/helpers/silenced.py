"""Heads that are zero in a plain loop of transformers."""

from __future__ import annotations

from contextlib import contextmanager


@contextmanager
def silenced(projection, columns):
    """Columns of the input of a projection are zero within the block."""

    def silence(_, args):
        z = args[0].clone()
        z[..., columns] = 0
        return (z, *args[1:])

    hook = projection.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()
