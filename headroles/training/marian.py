"""Translation models from scratch: a byte-pair tokenizer of given texts, and an untrained Marian of any size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"
LONGEST = 128  # positions of the model, in tokens


def pieced(
    texts: Iterable[str],
    size: int,
    *,
    apart: str | None = None,
    names: tuple[str, str, str] = (END, UNKNOWN, PADDING),
    special: Sequence[str] | None = None,
) -> PreTrainedTokenizerFast:
    """Train a byte-pair tokenizer with character offsets.

    Args:
        texts: Texts of both languages.
        size: Largest number of pieces.
        apart: Regular expression of characters that are pieces of their own; by default all punctuation, and then texts
            are normalised by NFKC.
        names: Names of the end, unknown and padding tokens.
        special: Tokens that come first in the vocabulary, by default those of `names`.

    Returns:
        The tokenizer.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    end, unknown, padding = names
    first = [*(special or names)]
    pieces = Tokenizer(models.BPE(unk_token=unknown))
    if apart is None:
        pieces.normalizer = normalizers.NFKC()
    cut = pre_tokenizers.Punctuation("isolated") if apart is None else pre_tokenizers.Split(Regex(apart), "isolated")
    pieces.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), cut])
    pieces.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    pieces.train_from_iterator(texts, trainer)
    pieces.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, first.index(end))])
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces, eos_token=end, unk_token=unknown, pad_token=padding, model_max_length=LONGEST
    )


def marian(
    tokenizer: PreTrainedTokenizerBase, *, width: int, layers: int, heads: int, inner: int, seed: int = 0, **config: Any
) -> MarianMTModel:
    """Return an untrained Marian with equal encoder and decoder.

    Args:
        tokenizer: The tokenizer of both languages.
        width: Width of the model.
        layers: Layers of the encoder, and of the decoder.
        heads: Heads of each attention layer.
        inner: Width of the feed-forward layers.
        seed: Seed of the weights.
        **config: Further options of `transformers.MarianConfig`.

    Returns:
        The model in eval mode.

    Raises:
        ValueError: If the number of heads does not divide the width.
    """
    if width % heads:
        raise ValueError(f"{heads} heads do not share a width of {width} equally; give a multiple of {heads}")
    sides = {"layers": layers, "attention_heads": heads, "ffn_dim": inner}
    usual: dict[str, Any] = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sides.items()}
    # transformers' init_std of 0.02: with a norm after each sum, 6+6 layers of d 128 learn far more slowly from weights
    # drawn with a standard deviation of width**-0.5
    usual |= {"scale_embedding": True, "max_position_embeddings": LONGEST}
    usual |= {"eos_token_id": tokenizer.eos_token_id, "forced_eos_token_id": None}
    usual |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), d_model=width, **usual | config))
    model.generation_config.max_length = LONGEST
    model.eval()
    return model
