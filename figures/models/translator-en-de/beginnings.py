"""Initial translators: untrained, or with a pretrained encoder and a new decoder."""

from __future__ import annotations

from typing import Any, Literal

import torch
import transformers
from bilingual import paired
from replication import LONGEST, pieced
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headroles.data.corpus import Corpus
from headroles.models import loading


def untrained(
    tokenizer: PreTrainedTokenizerBase,
    positions: Literal["sinusoids", "learnt"],
    *,
    width: int,
    heads: int,
    layers: tuple[int, int],
    seed: int = 0,
) -> PreTrainedModel:
    """Build an untrained Marian (sinusoids) or BART (learnt positions); `layers` are of encoder and decoder."""
    config: dict[str, Any] = {"vocab_size": len(tokenizer), "d_model": width, "dropout": 0.0}
    for side, count in zip(("encoder", "decoder"), layers, strict=True):
        config |= {f"{side}_layers": count, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * width}
    config |= {"max_position_embeddings": LONGEST, "eos_token_id": tokenizer.eos_token_id, "forced_eos_token_id": None}
    config |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel
        if positions == "sinusoids":
            model = transformers.MarianMTModel(transformers.MarianConfig(scale_embedding=True, **config))
        else:
            learnt = transformers.BartConfig(bos_token_id=tokenizer.eos_token_id, **config)
            model = transformers.BartForConditionalGeneration(learnt)
    model.generation_config.max_length = LONGEST
    model.eval()
    return model


def pretrained(
    pairs: Corpus, *, layers: int = 2, pieces: int = 8000, seed: int = 0, dropout: float = 0.1
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Join MiniLM as the encoder of a translator with a new decoder; return the model and its tokenizer."""
    encoder, source = loading.load("minilm")
    last = max(source.all_special_ids)
    vocabulary = source.convert_ids_to_tokens(list(range(last + 1)))
    target = pieced(
        (pair.target.text for pair in pairs if pair.target),
        pieces + len(vocabulary),
        special=vocabulary,
        names=(str(source.sep_token), str(source.unk_token), str(source.pad_token)),
    )
    tokenizer = paired(source, target)
    config = transformers.BertConfig(
        **encoder.config.to_dict()
        | {
            "vocab_size": len(target),
            "num_hidden_layers": layers,
            "is_decoder": True,
            "add_cross_attention": True,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        }
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = transformers.BertLMHeadModel(config)
    model = transformers.EncoderDecoderModel(encoder=encoder, decoder=decoder)
    ends = {"pad_token_id": source.pad_token_id, "eos_token_id": source.sep_token_id}
    ends |= {"decoder_start_token_id": source.cls_token_id}
    for name, value in ends.items():
        setattr(model.config, name, value)
        setattr(model.generation_config, name, value)
    model.generation_config.max_length = LONGEST
    return model.eval(), tokenizer


def shuffle_queries_and_keys(model: PreTrainedModel, *, seed: int = 0) -> None:
    """Permute the input columns of each query and key matrix of the encoder; keep norms and singular values."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.get_encoder().layers:
        for matrix in (layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight):
            order = torch.randperm(matrix.shape[1], generator=generator)
            matrix.data = matrix.data[:, order.to(matrix.device)].contiguous()
