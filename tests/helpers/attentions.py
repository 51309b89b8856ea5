"""A plain forward, and the attention weights that a model gives out by itself."""

from __future__ import annotations

import torch

from headroles.models.attention_hooks import without_cache

FIELDS = {"enc-self": "encoder_attentions", "dec-self": "decoder_attentions", "cross": "cross_attentions"}


def forward(model, given, **more):
    with torch.no_grad():
        return model(**given, **without_cache(model), **more)


def own_attentions(model, given):
    """(kind, layer) -> weights, as an eager copy of the model gives them out by itself."""
    options = model.config.to_dict()
    copy = type(model)(type(model.config).from_dict(options, attn_implementation="eager")).eval()
    copy.load_state_dict(model.state_dict())
    made = forward(copy, given, output_attentions=True)
    fields = FIELDS if "encoder_attentions" in made else dict.fromkeys(("enc-self", "dec-self"), "attentions")
    return {(kind, layer): one for kind, field in fields.items() for layer, one in enumerate(made[field])}
