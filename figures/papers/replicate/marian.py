"""Translation models from scratch: a byte-pair tokenizer of given texts, and an untrained Marian of any size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    """Return a byte-pair tokenizer with character offsets, trained on texts of both languages to at most `size` pieces.

    `apart` is a regular expression of characters that are pieces of their own; by default these are all punctuation,
    and texts are normalised by NFKC. `names` are those of the end, unknown and padding tokens. Tokens of `special`, by
    default those, come first in the vocabulary.
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
    tokenizer: PreTrainedTokenizerBase,
    *,
    width: int,
    layers: int,
    heads: int,
    inner: int,
    seed: int = 0,
    dropout: float = 0.1,
    init_std: float = 0.02,
    activation_function: str = "gelu",
) -> MarianMTModel:
    """Return an untrained Marian in eval mode with equal encoder and decoder; `inner` is the feed-forward width."""
    # transformers' init_std of 0.02: with a norm after each sum, 6+6 layers of d 128 learn far more slowly from weights
    # drawn with a standard deviation of width**-0.5
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        scale_embedding=True,
        max_position_embeddings=LONGEST,
        eos_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        dropout=dropout,
        init_std=init_std,
        activation_function=activation_function,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MarianMTModel(config)
    model.generation_config.max_length = LONGEST
    model.eval()
    return model
