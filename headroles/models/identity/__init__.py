"""Identity: what a result is a result of, computed in one place from bytes."""

from headroles.models.identity.of_model import (
    has_name,
    identity,
    is_offloaded,
    model_name,
    tokens,
    unnamed,
    weights_digest,
    without_gradients,
)

__all__ = [
    "has_name",
    "identity",
    "is_offloaded",
    "model_name",
    "tokens",
    "unnamed",
    "weights_digest",
    "without_gradients",
]
