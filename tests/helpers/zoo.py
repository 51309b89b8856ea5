"""A zoo of tiny random models, one per architecture, with the attention sites each of them has."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.gptj import modeling_gptj

from headroles.testing.case import Case
from headroles.testing.tiny_models import widen

VOCABULARY = 64
BOS, PAD, EOS, FIRST_WORD = 0, 1, 2, 4  # the same in every model; ids from FIRST_WORD on are words
USUAL = ("marian", "bert", "gpt2", "llama-grouped", "t5", "fsmt", "albert", "bloom")  # one for each way of attending
# used by name alone: they attend as another model of the zoo does
ALIKE = {
    "bart", "m2m100", "bert2bert", "mpnet", "bert-decoder", "gptj", "gpt-neox", "opt", "llama", "mistral", "qwen2",
    "cohere", "smollm3", "granite",
}  # fmt: skip
# attend outside of transformers' interface; GPT-J up to transformers 5.23 only
OUTSIDE = {"fsmt", "deberta-v2", "mpnet", "gpt-neo", "bloom", "falcon", "falcon-grouped"}
if not hasattr(modeling_gptj, "ALL_ATTENTION_FUNCTIONS"):
    OUTSIDE.add("gptj")
Site = tuple[str, int, int, int, int]  # kind, layer, heads, key-value heads, size of a head

# fmt: off
TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}
START = TOKENS | {"decoder_start_token_id": EOS}
# BART and its children name their sizes so, ...
BART = START | {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40,
}
# ... BERT, Llama and most others so, ...
BERT = TOKENS | {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40,
}
GROUPED = BERT | {"num_key_value_heads": 2}  # two query heads share a key-value head
T5 = START | {"d_model": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48}
GPT2 = TOKENS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 40}
BLOOM = TOKENS | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {"is_decoder": True, "add_cross_attention": True}

# name: (model class, config class, config)
Row = tuple[str, str, dict[str, Any]]
ENCODER_DECODERS: dict[str, Row] = {
    "marian": ("MarianMTModel", "MarianConfig", BART),
    "marian-asymmetric": ("MarianMTModel", "MarianConfig", BART | {
        "encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 8, "decoder_attention_heads": 4}),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "m2m100": ("M2M100ForConditionalGeneration", "M2M100Config", BART),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5 | {"d_kv": 12}),  # heads x size is not the hidden size
    "fsmt": ("FSMTForConditionalGeneration", "FSMTConfig", BART | {
        "langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY}),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", BART | {
        "num_mel_bins": 8, "max_source_positions": 7, "max_target_positions": 40, "suppress_tokens": None,
        "begin_suppress_tokens": None}),
    # its `attentions` are scores before the softmax, and its `generate` fails with a cache (5.23)
    "prophetnet": ("ProphetNetForConditionalGeneration", "ProphetNetConfig", START | {
        "hidden_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40,
        "use_cache": False}),
    "bert2bert": ("EncoderDecoderModel", "EncoderDecoderConfig", START | {
        "encoder": {"model_type": "bert"} | BERT, "decoder": {"model_type": "bert"} | BERT | DECODER}),
    "bert2gpt2": ("EncoderDecoderModel", "EncoderDecoderConfig", START | {
        "encoder": {"model_type": "bert"} | BERT, "decoder": {"model_type": "gpt2"} | GPT2 | DECODER}),
}
ENCODERS: dict[str, Row] = {
    "bert": ("BertForMaskedLM", "BertConfig", BERT),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", BERT | {"embedding_size": 16}),  # one module, called once per layer
    "deberta-v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", BERT | {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", BERT | {
        "local_attention": 4, "cls_token_id": BOS, "sep_token_id": EOS}),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", BERT),
    "vit": ("ViTForImageClassification", "ViTConfig", {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 8,
        "patch_size": 4}),
}
DECODERS: dict[str, Row] = {
    "bert-decoder": ("BertLMHeadModel", "BertConfig", BERT | {"is_decoder": True}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", GPT2 | {"rotary_dim": 4}),
    "gpt-neo": ("GPTNeoForCausalLM", "GPTNeoConfig", TOKENS | {
        "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48, "max_position_embeddings": 40,
        "attention_types": [[["global", "local"], 1]], "window_size": 4}),
    "gpt-neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", BERT),
    "opt": ("OPTForCausalLM", "OPTConfig", TOKENS | {
        "hidden_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
        "max_position_embeddings": 40}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", BERT),
    "llama-grouped": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED | {"head_dim": 16}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", GROUPED | {
        "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 4, "layer_types": [
            "sliding_attention", "full_attention"]}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "bloom": ("BloomForCausalLM", "BloomConfig", BLOOM),
    # all query heads share one key-value head; under sdpa `output_attentions=True` drops the causal mask
    "falcon": ("FalconForCausalLM", "FalconConfig", BLOOM),
    "falcon-grouped": ("FalconForCausalLM", "FalconConfig", BLOOM | {
        "new_decoder_architecture": True, "num_kv_heads": 2}),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "cohere": ("CohereForCausalLM", "CohereConfig", GROUPED),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", GROUPED | {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED | {"no_rope_layer_interval": 2}),
    "granite": ("GraniteForCausalLM", "GraniteConfig", GROUPED),
}
WITHOUT_SITES: dict[str, Row] = {
    "mamba": ("MambaForCausalLM", "MambaConfig", TOKENS | {
        "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "time_step_rank": 4}),
    "fnet": ("FNetForMaskedLM", "FNetConfig", TOKENS | {
        "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 40}),
    # attention, but its output projection is a bare parameter in an einsum: no module's input is the heads
    "xlnet": ("XLNetLMHeadModel", "XLNetConfig", TOKENS | {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
}
ZOO: dict[str, Row] = ENCODER_DECODERS | ENCODERS | DECODERS | WITHOUT_SITES

# What differs from two layers of four heads of size eight: (kind, layers, heads, key-value heads, size).
UNUSUAL: dict[str, list[tuple[str, int, int, int, int]]] = {
    "marian-asymmetric": [("enc-self", 3, 8, 8, 4), ("dec-self", 1, 4, 4, 8), ("cross", 1, 4, 4, 8)],
    "mt5": [("enc-self", 2, 4, 4, 12), ("dec-self", 2, 4, 4, 12), ("cross", 2, 4, 4, 12)],
    "falcon": [("dec-self", 2, 4, 1, 8)],
    "falcon-grouped": [("dec-self", 2, 4, 2, 8)],
}
# fmt: on


def _expected(name: str) -> list[Site]:
    kinds = {"enc-self", "dec-self", "cross"} if name in ENCODER_DECODERS else set()
    kinds |= {"enc-self"} if name in ENCODERS else {"dec-self"} if name in DECODERS else set()
    config = ZOO[name][2]
    usual = [(kind, 2, 4, config.get("num_key_value_heads", 4), config.get("head_dim", 8)) for kind in kinds]
    groups = UNUSUAL.get(name, usual)
    return sorted((kind, layer, *shape) for kind, layers, *shape in groups for layer in range(layers))


EXPECTED: dict[str, list[Site]] = {name: _expected(name) for name in ZOO}


def tiny(name: str, *, seed: int = 0, **options: Any) -> PreTrainedModel:
    """A model of the zoo in eval mode and float32, its weights wide enough for attention to be far from uniform."""
    return copy.deepcopy(_built(name, seed, **options))


@cache
def _built(name: str, seed: int, **options: Any) -> PreTrainedModel:
    """That model, built once: a copy takes half of the time."""
    model_class, config_class, usual = ZOO[name]
    config = getattr(transformers, config_class)(**usual | options)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = getattr(transformers, model_class)(config)
        for parameter in model.parameters():
            widen(parameter)
    return model.eval()


def drawn(make: Callable[[], PreTrainedModel], *, seed: int = 0, std: float = 0.3) -> PreTrainedModel:
    """A model in eval mode with all its matrices drawn by the seed, wide enough for attention far from uniform."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = make()
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.requires_grad:
                parameter.normal_(std=std)
    return model.eval()


def inputs(
    model: PreTrainedModel, *, batch: int = 2, source: int = 7, target: int = 5, padded: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """Random inputs a model of the zoo takes; `padded`: the second example ends two tokens (target: one) earlier."""
    generator = torch.Generator().manual_seed(seed)
    accepted = inspect.signature(model.forward).parameters
    given: dict[str, Tensor] = {}
    if model.main_input_name == "input_ids":
        padding = 2 if padded and "attention_mask" in accepted else 0
        given |= dict(zip(("input_ids", "attention_mask"), _tokens(batch, source, padding, generator), strict=True))
    else:
        given[model.main_input_name] = torch.randn(_media_shape(model, batch), generator=generator)
    if model.config.is_encoder_decoder:
        ids, mask = _tokens(batch, target, int(padded), generator)
        ids[:, 0] = EOS  # the decoder's start token
        given |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    return {name: value for name, value in given.items() if name in accepted}


@cache
def case(name: str) -> Case:
    """A model of the zoo and padded inputs for the checks of `headroles.testing`, which change neither."""
    return Case(tiny(name), inputs(tiny(name)))


def _tokens(batch: int, length: int, padding: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    ids = torch.randint(FIRST_WORD, VOCABULARY, (batch, length), generator=generator)  # [batch, token]
    mask = torch.ones_like(ids)
    ids[1:2, length - padding :] = PAD
    mask[1:2, length - padding :] = 0
    return ids, mask


def _media_shape(model: PreTrainedModel, batch: int) -> tuple[int, ...]:
    config = model.config
    if model.main_input_name == "pixel_values":
        return batch, config.num_channels, config.image_size, config.image_size
    return batch, config.num_mel_bins, 2 * config.max_source_positions


def each(names: Iterable[str]) -> list[Any]:
    """Architectures to try one check on: one of each way to build attention; variants among slow tests."""
    return variants(name for name in names if name not in ALIKE)


def variants(names: Iterable[str]) -> list[Any]:
    """Architectures of which unusual ones are tried among slow tests only."""
    return [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in names]
