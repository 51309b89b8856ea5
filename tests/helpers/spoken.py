"""Tones with transcripts of letters, and a small Whisper: random, or with a head that attends to the word just read."""

from __future__ import annotations

import copy
import json

import numpy as np
import soundfile
import torch
from helpers import zoo
from helpers.letters import tokenizer
from transformers import WhisperFeatureExtractor

import headroles as hr

RATE, FRAMES, STEP = 16_000, 50, 0.02  # the window is a second
LENGTHS = (0.4, 0.73, 0.2, 1.0)  # seconds
TEXTS = ("a b c", "d e f g h", "x", "k l a b c d")


def tone(seconds, rate=RATE, *, channels=1, pitch=440.0, level=0.3):
    times = np.arange(round(seconds * rate)) / rate
    wave = (level * np.sin(2 * np.pi * pitch * times)).astype(np.float32)
    return wave if channels == 1 else np.stack([wave] * channels, axis=-1)


def rows(folder, *, rate=RATE, **options):
    """Rows of sounds in files; words share a sound equally."""
    made = []
    for number, (seconds, text) in enumerate(zip(LENGTHS, TEXTS, strict=True)):
        soundfile.write(folder / f"{number}.wav", tone(seconds, rate, pitch=200.0 * (number + 1), **options), rate)
        words = text.split()
        ends = [seconds * (place + 1) / len(words) for place in range(len(words))]
        timed = [{"word": w, "start": b, "end": e} for w, b, e in zip(words, [0, *ends], ends, strict=False)]
        made.append({"audio": f"{number}.wav", "text": text, "words": timed})
    return made


def corpus(folder, **options):
    return read(folder, rows(folder, **options))


def read(folder, given):
    (folder / "tones.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    return hr.read(folder / "tones.jsonl")


def listener(*, planted=False):
    """A small Whisper and its tokenizer; planted, cross head L0H0 attends to the frames of the tenth of its position.

    With words of a tenth of a second each, one token each, that is the word just read.
    """
    model = zoo.tiny("whisper", max_source_positions=FRAMES, max_position_embeddings=FRAMES)
    model.generation_config.max_new_tokens = 6
    tokens = copy.deepcopy(tokenizer())
    tokens.model_max_length = FRAMES - 10  # of transcripts: Whisper's has 1,024, and a sound 1,500 frames
    tokens.feature_extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    return _plant(model) if planted else model, tokens


def _plant(model):
    encoder, decoder, size = model.model.encoder, model.model.decoder, model.config.d_model
    basis = torch.linalg.qr(torch.cat([torch.ones(size, 1), torch.eye(size)[:, :8]], dim=1)).Q
    codes = basis[:, 1:].T  # of eight tenths of a second: orthogonal, of mean 0, so that norms only scale them
    with torch.no_grad():
        for name, value in model.named_parameters():
            silent = ("conv", "fc2", "out_proj", "embed_tokens")
            if any(part in name for part in silent) and not name.startswith("proj_out"):
                value.zero_()
            elif "norm" in name:
                value.fill_(float(name.endswith("weight")))
        for frame in range(FRAMES):
            encoder.embed_positions.weight[frame] = codes[min(frame // 5, 7)]
        decoder.embed_positions.weight.zero_()
        decoder.embed_positions.weight[1:9] = codes  # position 0 reads the start token
        attention = decoder.layers[0].encoder_attn
        width = size // model.config.decoder_attention_heads
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight[:width] = 3 * codes[:width]
        attention.q_proj.bias.zero_()
    return model
