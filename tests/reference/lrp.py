"""Relevance by textbook: R itself goes back through Marian and GPT-2, one example, one contribution at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

Key = tuple[str, int]  # kind, layer
Back = Callable[[], object]


class Node(NamedTuple):
    """A value on its way forward, and the relevance that comes back to it: both [token, width]."""

    value: Tensor
    relevance: Tensor

    def part(self, start: int, size: int) -> Node:
        """Some columns; what comes back to them comes back to the whole."""
        return Node(self.value[:, start : start + size], self.relevance[:, start : start + size])


class Result(NamedTuple):
    logits: Tensor  # [token, vocabulary]
    heads: dict[Key, Tensor]  # the relevance of each head


def marian(model: PreTrainedModel, source: Tensor, target: Tensor, step: int, token: int, rules: str):
    """Relevance of all heads for one logit of a post-norm encoder-decoder; `source` and `target` are [token] ids."""
    book = Book(model, rules)
    state = book.embedded("model.encoder", source)
    for layer in range(model.config.encoder_layers):
        path = f"model.encoder.layers.{layer}"
        state = book.attended(("enc-self", layer), f"{path}.self_attn", state, state, f"{path}.self_attn_layer_norm")
        state = book.fed(path, state)
    source_state, state = state, book.embedded("model.decoder", target)
    for layer in range(model.config.decoder_layers):
        path = f"model.decoder.layers.{layer}"
        norm = f"{path}.self_attn_layer_norm"
        state = book.attended(("dec-self", layer), f"{path}.self_attn", state, state, norm, causal=True)
        norm = f"{path}.encoder_attn_layer_norm"
        state = book.attended(("cross", layer), f"{path}.encoder_attn", state, source_state, norm)
        state = book.fed(path, state)
    logits = book.linear(state, book.weights["lm_head.weight"].T, None)
    return book.closed(book.shifted(logits, book.weights["final_logits_bias"][0]), step, token)


def gpt2(model: PreTrainedModel, ids: Tensor, step: int, token: int, rules: str):
    """Relevance of all heads for one logit of a pre-norm decoder; `ids` are [token]."""
    book = Book(model, rules)
    state = book.node(book.weights["transformer.wte.weight"][ids] + book.weights["transformer.wpe.weight"][: len(ids)])
    for layer in range(model.config.n_layer):
        path, width = f"transformer.h.{layer}", model.config.n_embd
        joined = book.conv1d(book.norm(state, f"{path}.ln_1"), f"{path}.attn.c_attn")
        parts = [joined.part(i * width, width) for i in range(3)]
        heads = book.attention(("dec-self", layer), *parts, causal=True)
        state = book.sum(state, book.conv1d(heads, f"{path}.attn.c_proj"))
        hidden = book.activation(book.conv1d(book.norm(state, f"{path}.ln_2"), f"{path}.mlp.c_fc"), gelu_new)
        state = book.sum(state, book.conv1d(hidden, f"{path}.mlp.c_proj"))
    state = book.norm(state, "transformer.ln_f")
    return book.closed(book.linear(state, book.weights["lm_head.weight"].T, None), step, token)


class Book:
    """Every operation of a forward, and how relevance goes back through it, to be done in reverse."""

    def __init__(self, model: PreTrainedModel, rules: str) -> None:
        self.model, self.rules = model, rules
        self.weights = {name: weight.detach().double() for name, weight in model.state_dict().items()}
        self.backs: list[Back] = []
        self.sites: dict[Key, Node] = {}

    def node(self, value: Tensor) -> Node:
        return Node(value, torch.zeros_like(value))

    def closed(self, logits: Node, step: int, token: int) -> Result:
        """Starts relevance at one logit, at its value or by the voita rules at 1, and takes it back to all heads."""
        logits.relevance[step, token] = 1.0 if "voita" in self.rules else logits.value[step, token]
        for back in reversed(self.backs):
            back()
        many = self.model.config.num_attention_heads
        return Result(
            logits.value, {key: o.relevance.unflatten(-1, (many, -1)).sum((0, 2)) for key, o in self.sites.items()}
        )

    # --- what Marian is made of

    def embedded(self, path: str, ids: Tensor) -> Node:
        scale = math.sqrt(self.model.config.d_model) if self.model.config.scale_embedding else 1.0
        positions = self.weights[f"{path}.embed_positions.weight"][: len(ids)]
        return self.node(self.weights[f"{path}.embed_tokens.weight"][ids] * scale + positions)

    def attended(self, key: Key, path: str, state: Node, other: Node, norm: str, *, causal: bool = False) -> Node:
        query = self.dense(state, f"{path}.q_proj")
        key_value = [self.dense(other, f"{path}.{name}") for name in ("k_proj", "v_proj")]
        heads = self.attention(key, query, *key_value, causal=causal)
        return self.norm(self.sum(state, self.dense(heads, f"{path}.out_proj")), norm)

    def fed(self, path: str, state: Node) -> Node:
        function = {"relu": torch.relu, "swish": silu}[self.model.config.activation_function]
        hidden = self.activation(self.dense(state, f"{path}.fc1"), function)
        return self.norm(self.sum(state, self.dense(hidden, f"{path}.fc2")), f"{path}.final_layer_norm")

    def dense(self, x: Node, path: str) -> Node:
        return self.linear(x, self.weights[f"{path}.weight"].T, self.weights[f"{path}.bias"])

    def conv1d(self, x: Node, path: str) -> Node:
        return self.linear(x, self.weights[f"{path}.weight"], self.weights[f"{path}.bias"])

    # --- operations

    def linear(self, x: Node, weight: Tensor, bias: Tensor | None) -> Node:
        """y = x W + b, token by token; weight [in, out]."""
        bias = torch.zeros_like(weight[0]) if bias is None else bias
        y = self.node(x.value @ weight + bias)

        def back() -> None:
            for t in range(len(x.value)):
                z = weight.T * x.value[t]  # [out, in]
                x.relevance[t] += self._shared(z, y.value[t], y.relevance[t])

        self.backs.append(back)
        return y

    def norm(self, x: Node, path: str) -> Node:
        """Layer norm. cp and attn: its deviation is a constant; voita: R passes."""
        weight, bias = self.weights[f"{path}.weight"], self.weights[f"{path}.bias"]
        deviation = (x.value.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()  # [token, 1]
        y = self.node((x.value - x.value.mean(-1, keepdim=True)) / deviation * weight + bias)

        def back() -> None:
            for t, (row, r) in enumerate(zip(x.value, y.relevance, strict=True)):
                if self.rules == "voita":
                    x.relevance[t] += r
                    continue
                centre = torch.eye(len(row)).double() - 1 / len(row)
                slope = weight[:, None] * centre / deviation[t]
                x.relevance[t] += self._shared(slope * row, y.value[t], r)

        self.backs.append(back)
        return y

    def _shared(self, z: Tensor, y: Tensor, r: Tensor) -> Tensor:
        """The relevance of one token's inputs: [in], from all contributions z [out, in]."""
        return rescaled(alphabeta(z, r), r) if "voita" in self.rules else ratio(z, y, r)

    def activation(self, x: Node, function: Callable[[Tensor], Tensor]) -> Node:
        """R passes."""
        y = self.node(function(x.value))
        self.backs.append(lambda: x.relevance.add_(y.relevance))
        return y

    def shifted(self, x: Node, constant: Tensor) -> Node:
        """x plus a constant, which takes its ratio, but by the voita rules nothing."""
        y = self.node(x.value + constant)
        share = torch.ones_like(y.value) if "voita" in self.rules else x.value / y.value
        self.backs.append(lambda: x.relevance.add_(share * y.relevance))
        return y

    def sum(self, a: Node, b: Node) -> Node:
        """A residual stream: in ratio, or alpha-beta of the two summands of each number."""
        y = self.node(a.value + b.value)

        def back() -> None:
            for t, (one, other, r) in enumerate(zip(a.value, b.value, y.relevance, strict=True)):
                z = torch.cat([torch.diag(one), torch.diag(other)], 1)  # [width, 2 width]
                taken = rescaled(alphabeta(z, r), r) if "voita" in self.rules else ratio(z, y.value[t], r)
                for node, part in zip((a, b), taken.chunk(2), strict=True):
                    node.relevance[t] += part

        self.backs.append(back)
        return y

    def attention(self, key: Key, q: Node, k: Node, v: Node, *, causal: bool) -> Node:
        """All heads of a site, side by side."""
        many, width = self.model.config.num_attention_heads, q.value.shape[1]
        mask = torch.zeros(len(q.value), len(k.value), dtype=torch.float64)
        mask = mask.masked_fill(torch.ones_like(mask).triu(1) > 0, -torch.inf) if causal else mask
        o = self.sites[key] = self.node(torch.empty_like(q.value))
        for start in range(0, width, width // many):
            self._head(*(x.part(start, width // many) for x in (q, k, v, o)), mask)
        return o

    def _head(self, q: Node, k: Node, v: Node, o: Node, mask: Tensor) -> None:
        scale = q.value.shape[1] ** -0.5
        o.value.copy_(attend(q.value, k.value, v.value, mask, scale))

        def back() -> None:
            rules = {"cp": values_only, "attn": halves_and_taylor}
            taken = rules.get(self.rules, jointly)(q.value, k.value, v.value, mask, scale, o.relevance)
            for node, r in zip((q, k, v), taken, strict=True):
                node.relevance.add_(r)

        self.backs.append(back)


# --- functions and rules


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def gelu_new(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    return ((q @ k.T) * scale + mask).softmax(-1) @ v


def ratio(z: Tensor, y: Tensor, r: Tensor) -> Tensor:
    """LRP-0: R_i = sum_j z_ji R_j / y_j."""
    return (z * (r / y)[:, None]).sum(0)


def alphabeta(z: Tensor, r: Tensor) -> Tensor:
    """Half of each R_j over the positive contributions z_j, half over the negative."""
    taken = torch.zeros_like(z)
    for one in (z.clamp(min=0), z.clamp(max=0)):
        mass = one.sum(-1, keepdim=True)
        taken += torch.where(mass == 0, 0.0, one / torch.where(mass == 0, 1.0, mass)) * r[:, None] / 2
    return taken.sum(0)


def rescaled(taken: Tensor, given: Tensor) -> Tensor:
    """The same shares of all that was given."""
    return taken * (given.abs().sum() / taken.abs().sum()) if taken.any() else taken


def values_only(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, r: Tensor) -> list[Tensor]:
    """o = A v with A a constant."""
    weights = (q @ k.T * scale + mask).softmax(-1)
    taken = torch.zeros_like(v)
    for i in range(len(q)):
        for d in range(v.shape[1]):
            taken[:, d] += ratio((weights[i] * v[:, d])[None], weights[i, None] @ v[:, d], r[i, d : d + 1])
    return [torch.zeros_like(q), torch.zeros_like(k), taken]


def halves_and_taylor(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, r: Tensor) -> list[Tensor]:
    """Two factors take half each; s of the softmax a = softmax(s) takes s_i (R_i - a_i sum_j R_j)."""
    scores = q @ k.T * scale
    weights = (scores + mask).softmax(-1)
    to_v = values_only(q, k, v, mask, scale, r)[2] / 2
    to_weights = (weights[:, :, None] * v[None] / (weights @ v)[:, None] * r[:, None]).sum(-1) / 2  # [query, key]
    to_scores = scores * (to_weights - weights * to_weights.sum(-1, keepdim=True))
    each = q[:, None] * k[None] * scale / scores[..., None] * to_scores[..., None] / 2  # [query, key, size]
    return [each.sum(1), each.sum(0), to_v]


def jointly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, r: Tensor) -> list[Tensor]:
    """Alpha-beta over the Jacobian times q, k and v, rescaled over the head."""
    head_gradients = torch.autograd.functional.jacobian(lambda q, k, v: attend(q, k, v, mask, scale), (q, k, v))
    z = [
        (slope * x).flatten(2).flatten(0, 1) for slope, x in zip(head_gradients, (q, k, v), strict=True)
    ]  # [out, in] each
    taken = rescaled(alphabeta(torch.cat(z, 1), r.flatten()), r)
    return [part.view_as(x) for part, x in zip(taken.split([each.shape[1] for each in z]), (q, k, v), strict=True)]
