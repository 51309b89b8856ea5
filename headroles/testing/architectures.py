"""The architectures that are checked as tiny models, with the config options that some of them need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import pandas as pd
import transformers
from transformers import PreTrainedModel

from headroles._progress import track
from headroles.models.sites import submodel
from headroles.tables import frame
from headroles.testing.runner import CHECKS, check_model
from headroles.testing.tiny_models import tiny_model

# fmt: off
GROUPS: dict[str, str] = {  # an architecture and, after a slash, the submodel that is checked
    "decoders":
        "afmoe apertus arcee aria_text axk1 axk2 bailing_hybrid beam biogpt bitnet bloom codegen cohere cohere2 "
        "cohere2_moe ctrl cwm deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 diffllama doge ernie4_5 "
        "ernie4_5_moe exaone4 exaone_moe falcon falcon_mamba flex_olmo flint gemma gemma2 gemma3_text glm glm4 "
        "glm4_moe glm4_moe_lite glm_moe_dsa gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss "
        "gptj granite granite_swa granitemoe granitemoe_swa granitemoeshared helium hunyuan_v1_dense "
        "hunyuan_v1_moe hy_v3 hy_v4 hyperclovax internlm3 iquestcoder jais2 jamba jetmoe kimi_linear laguna lfm2 "
        "llama llama4_text mamba mellum mimo_v2_flash minicpm3 minimax minimax_m2 ministral ministral3 mistral "
        "mixtral modernbert-decoder mpt nanochat nemotron olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt "
        "persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next rwkv "
        "seed_oss smollm3 solar_open stablelm starcoder2 trocr vaultgemma xglm youtu zaya",
    "encoders":
        "albert bert bert-generation big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert dpr "
        "electra ernie esmc eurobert flaubert fnet gte jina_embeddings_v3 layoutlm longformer luke megatron-bert "
        "mobilebert modernbert mpnet nomic_bert openai_privacy_filter rembert roberta roberta-prelayernorm "
        "roc_bert roformer splinter squeezebert tapas ultrabert xlm xlm-roberta xlm-roberta-xl xlnet xmod",
    "encoder-decoders":
        "bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder fsmt led longt5 m2m_100 marian mbart "
        "mt5 mvp nllb-moe pegasus pegasus_x plbart prophetnet switch_transformers t5 t5gemma t5gemma2 umt5",
    "pictures":
        "aimv2_vision_model beit chinese_clip_vision_model clip_vision_model deit dinov2 dinov2_with_registers "
        "dinov3_vit dpt idefics3_vision ijepa imagegpt internvl_vision mlcd_vision_model pixio pixtral radio "
        "siglip_vision_model smolvlm_vision swin timesformer videomae vision-encoder-decoder vit vit_mae vit_msn "
        "vivit",
    "sound":
        "audio-spectrogram-transformer data2vec-audio hubert lasr_encoder moonshine parakeet_encoder "
        "qwen2_audio_encoder sew speech_to_text unispeech unispeech-sat wav2vec2 wav2vec2-bert wav2vec2-conformer "
        "wavlm whisper",
    "pictures or sound, with text":
        "altclip/text altclip/vision audioflamingo3 aya_vision chinese_clip/text clap/audio clap/text clip "
        "clip/text clip/vision cohere2_vision deepseek_vl flava/image flava/text fuyu gemma3 git glm4v got_ocr2 "
        "granite_speech idefics2 idefics3 internvl kimi_k25 kosmos-2/text lfm2_vl llava llava/text llava/vision "
        "llava_next llava_onevision mistral3 mllama modernvbert ovis2 paligemma qwen2_5_vl qwen2_audio qwen2_vl "
        "qwen3_vl shieldgemma2 siglip/text siglip/vision smolvlm video_llava vipllava voxtral",
}
_ROTARY = {"rope_type": "default", "rope_theta": 1e4}
OPTIONS: dict[str, dict[str, Any]] = {  # where the default config gives no model, or a large one
    "bert-generation": {"is_decoder": False},
    "ctrl": {"dff": 48},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "glm4v": {"text_config": {"rope_parameters": {
        **_ROTARY, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}}},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "llama4_text": {"intermediate_size_mlp": 48},
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "qwen2_5_vl": {"text_config": {"rope_parameters": {**_ROTARY, "mrope_section": [2, 3, 3]}}},
    "qwen2_vl": {"text_config": {"rope_parameters": {**_ROTARY, "mrope_section": [2, 3, 3]}}},
    "swin": {"image_size": 32, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4},
    "xmod": {"default_language": "en_XX"},
    "xlnet": {"d_head": 16, "n_head": 4, "d_model": 64},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # other configurations: the architecture and its options
    "bert as a decoder": ("bert", {"is_decoder": True, "architectures": ["BertLMHeadModel"]}),
    "falcon, grouped": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt2, scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2, upcast": ("gpt2", {"reorder_and_upcast_attn": True}),
    "llama, grouped": ("llama", {"num_key_value_heads": 2}),
    "llama, one key-value head": ("llama", {"num_key_value_heads": 1}),
    "marian, deeper encoder": ("marian", {"encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 8}),
    "mistral, sliding": ("mistral", {"sliding_window": 3}),
    "mt5, wide heads": ("mt5", {"d_kv": 24}),
}
# fmt: on


def architectures(names: Sequence[str] | None = None) -> pd.DataFrame:
    """Run all checks on a tiny model of every architecture.

    Args:
        names: Names of `GROUPS` and `VARIANTS`; by default all of them.

    Returns:
        The rows of `check_model` for each architecture, index (name, law), with its group and its model type. An
        architecture that cannot be built has the reason in all its rows.

    Raises:
        ValueError: A name is unknown.
    """
    groups = dict(_listed())
    chosen = list(groups) if names is None else list(names)
    if unknown := [name for name in chosen if name not in groups]:
        raise ValueError(f"unknown architecture: got {', '.join(unknown)}; expected one of: {', '.join(groups)}")
    table = pd.concat([_checked(name, groups[name]) for name in track(chosen, "architectures", len(chosen))])
    text = frame.sign(headroles=version("headroles"), transformers=transformers.__version__, seed=0)
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table


def _listed() -> Iterator[tuple[str, str]]:
    """Each name with its group."""
    for group, names in GROUPS.items():
        yield from ((name, group) for name in names.split())
    yield from ((name, "variants") for name in VARIANTS)


def _checked(name: str, group: str) -> pd.DataFrame:
    try:
        table = check_model(build(name))
    except ValueError as error:  # no tiny model, or no such submodel
        table = pd.DataFrame({"of": [check.of for check in CHECKS.values()]}, index=pd.Index(CHECKS, name="law"))
        table = table.assign(holds="refused", off=float("nan"), allowed=float("nan"), why=str(error))
    kind = VARIANTS[name][0] if name in VARIANTS else name.partition("/")[0]
    table = table.reset_index().assign(name=name, group=group, architecture=kind)
    return table.set_index(["name", "law"])


def build(name: str) -> PreTrainedModel:
    """Return the tiny model of an architecture, or of one of its submodels, by name."""
    kind, options = VARIANTS.get(name, (name.partition("/")[0], {}))
    model = tiny_model(kind, **(options or OPTIONS.get(kind, {})))
    part = name.partition("/")[2]
    return submodel(model, part) if part else model
