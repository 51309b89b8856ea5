"""A translator from nothing: a tokenizer of pieces learnt from text, and an untrained Marian of any size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"
LONGEST = 128  # tokens that such a model has positions for


def pieced(
    texts: Iterable[str],
    size: int,
    *,
    apart: str | None = None,
    names: tuple[str, str, str] = (END, UNKNOWN, PADDING),
    special: Sequence[str] | None = None,
) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `size` pieces by byte-pair encoding of `texts` (of both languages), with offsets.

    `apart` are characters that never join others in a piece, as for a regular expression; by default all punctuation,
    and then what Unicode writes in several ways is written in one. `names` are those of the tokens of the end, of what
    is unknown, and of padding; `special` are the tokens that come first, by default these.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    end, unknown, padding = names
    first = [*(special or names)]
    made = Tokenizer(models.BPE(unk_token=unknown))
    if apart is None:
        made.normalizer = normalizers.NFKC()
    cut = pre_tokenizers.Punctuation("isolated") if apart is None else pre_tokenizers.Split(Regex(apart), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), cut])
    made.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    made.train_from_iterator(texts, trainer)
    made.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, first.index(end))])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=end, unk_token=unknown, pad_token=padding, model_max_length=LONGEST
    )


def marian(
    tokenizer: PreTrainedTokenizerBase, *, width: int, layers: int, heads: int, inner: int, seed: int = 0, **config: Any
) -> MarianMTModel:
    """An untrained Marian for the tokens of `tokenizer`, as many layers and heads in the encoder as in the decoder.

    `inner` is the width of feed-forward layers; `config` are other options of `transformers.MarianConfig`. Raises
    ValueError where the heads do not divide the width.
    """
    if width % heads:
        raise ValueError(f"{heads} heads do not share a width of {width} equally; give a multiple of {heads}")
    own = {"layers": layers, "attention_heads": heads, "ffn_dim": inner}
    sizes: dict[str, Any] = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in own.items()}
    # transformers' init_std of 0.02, for a norm after each sum wants branches that begin small: 6+6 layers of d 128
    # that are drawn with width**-0.5 learn far more slowly
    usual: dict[str, Any] = {"scale_embedding": True, "max_position_embeddings": LONGEST}
    usual |= {"eos_token_id": tokenizer.eos_token_id, "forced_eos_token_id": None}
    usual |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), d_model=width, **sizes, **usual | config))
    model.generation_config.max_length = LONGEST
    made: MarianMTModel = model.eval()
    return made
