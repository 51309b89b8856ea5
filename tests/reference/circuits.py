"""The maps of heads of GPT-2 and Llama, read by their names: the slow reference of circuits and composition."""

from __future__ import annotations

import numpy as np

WIDTH, SIZE, HEADS = 32, 8, 4  # of the tiny models


def double(parameter):
    return parameter.detach().double().numpy()


def dense(name, model, layer, head):
    """W_Q, W_K, W_V of a head with the norm before them, and W_O: [size, width] three times, [width, size]."""
    part = slice(SIZE * head, SIZE * head + SIZE)
    if name == "gpt2":
        block = model.transformer.h[layer]
        rows = [double(block.attn.c_attn.weight).T[WIDTH * i :][part] for i in range(3)]
        before = double(block.ln_1.weight) * np.eye(WIDTH) @ (np.eye(WIDTH) - 1 / WIDTH)
        return [row @ before for row in rows], double(block.attn.c_proj.weight)[part].T
    block = model.model.layers[layer]
    shared = slice(SIZE * (head // 2), SIZE * (head // 2) + SIZE)  # two query heads share a key-value head
    maps = block.self_attn
    rows = [double(maps.q_proj.weight)[part], double(maps.k_proj.weight)[shared], double(maps.v_proj.weight)[shared]]
    return [row * double(block.input_layernorm.weight) for row in rows], double(maps.o_proj.weight)[:, part]
