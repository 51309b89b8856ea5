"""The same jobs by headroles, plain loops, TransformerLens, nnsight and captum, on one model and its batches."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import Batch, TokenView
from headroles.models.head_model import HeadModel
from headroles.models.masking import head_mask, mask_heads
from headroles.scores import outputs
from headroles.scores.gradients.base import head_gradients
from headroles.scores.objectives import Reference

SCORES = ["confidence", "position", "entropy", "sink", "distance"]
OFFSETS = {"-2": -2, "-1": -1, "0": 0, "+1": 1, "+2": 2}
PLACES = {  # (type of model, kind) -> hooks of TransformerLens, attention module, its output projection
    ("marian", "enc-self"): ("encoder_blocks.{}.attn", "model.encoder.layers.{}.self_attn", "{}.out_proj"),
    ("marian", "dec-self"): ("decoder_blocks.{}.self_attn", "model.decoder.layers.{}.self_attn", "{}.out_proj"),
    ("marian", "cross"): ("decoder_blocks.{}.cross_attn", "model.decoder.layers.{}.encoder_attn", "{}.out_proj"),
    ("bert", "enc-self"): ("blocks.{}.attn", "bert.encoder.layer.{}.attention.self", "{}.output.dense"),
    ("llama", "dec-self"): ("blocks.{}.attn", "model.layers.{}.self_attn", "{}.o_proj"),
}
Site = tuple[str, int]
Collect = Callable[[Batch], Iterator[tuple[Site, Tensor]]]  # of each site the attention on a batch
Logits = Callable[[Batch], Tensor]
Run = Callable[[], pd.DataFrame]


@dataclass
class Setting:
    """A model and a corpus for it, as batches."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    corpus: hr.Corpus
    max_tokens: int = 4096
    heads: list[tuple[str, int, int]] | None = None  # that are ablated one by one, by default all
    batches: list[Batch] = field(init=False)
    index: list[tuple[str, int, int]] = field(init=False)
    handle: HeadModel = field(init=False)
    labels: list[Tensor] = field(init=False)  # what should be written after each token of each batch, -100: nothing

    def __post_init__(self) -> None:
        self.model.eval()
        self.handle = HeadModel.of(self.model, self.tokenizer)
        encoded = self.handle.encode(self.corpus, words=False)
        self.batches = list(self.handle.batches(encoded, max_tokens=self.max_tokens))
        self.index = [tuple(head) for head in self.handle.heads]
        self.heads = self.index if self.heads is None else self.heads
        self.labels = [outputs.labels(self.handle, batch) for batch in self.batches] if self.writes else []

    @property
    def writes(self) -> bool:
        """Whether the model writes a text, so that it has a loss; an encoder's metric is agreement with itself."""
        return {kind for kind, _, _ in self.index} != {"enc-self"}

    @property
    def per_layer(self) -> int:
        return 1 + max(head for _, _, head in self.index)

    @property
    def tokens(self) -> int:
        """Tokens that are read and written, padding left out."""
        views = [view for batch in self.batches for view in (batch.source, batch.target) if view is not None]
        return sum(int(view.attention_mask.sum()) for view in views)

    @property
    def steps(self) -> int:
        """Tokens with a loss."""
        return sum(int((labels >= 0).sum()) for labels in self.labels)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return batch.inputs | without_cache(self.model)

    def sites(self) -> list[Site]:
        return list(dict.fromkeys((kind, layer) for kind, layer, _ in self.index))

    def calls(self) -> list[Site]:
        """The sites in the order of a forward, which a trace of nnsight must keep."""
        return sorted(self.sites(), key=lambda site: (site[0] != "enc-self", site[1], site[0] == "cross"))

    def place(self, kind: str, layer: int) -> tuple[str, str, str]:
        """Return of one site its hooks in TransformerLens, its attention module, its output projection."""
        hooks, module, out = PLACES[self.model.config.model_type, kind]
        module = module.format(layer)
        return hooks.format(layer), module, out.format(module.removesuffix(".self") if "bert" in module else module)

    def eager(self) -> PreTrainedModel:
        """Return a copy that gives its attention, so that the model stays with its fast one."""
        model = deepcopy(self.model)
        model.set_attn_implementation("eager")
        return model


def lens(of: Setting) -> Any:
    """Return the model in TransformerLens, which reads the config and the tokenizer once more."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        of.model.config.save_pretrained(folder)
        of.tokenizer.save_pretrained(folder)
        given = {"hf_model": deepcopy(of.model), "tokenizer": AutoTokenizer.from_pretrained(folder)}
        return TransformerBridge.boot_transformers(folder, device=str(of.model.device), **given)


def _called(batch: Batch) -> tuple[tuple[Tensor], dict[str, Tensor]]:
    """Return what TransformerLens is called with."""
    rest = {name: value for name, value in batch.inputs.items() if name != "input_ids"}
    return (batch.inputs["input_ids"],), rest


def nnsight(model: nn.Module) -> Any:
    from nnsight import NNsight

    return NNsight(model)


# Scores of attention: one pass, the five statistics that are written by hand below.


def scored(of: Setting) -> Run:
    def run() -> pd.DataFrame:
        found = hr.score(of.model, of.tokenizer, of.corpus, SCORES, n_resamples=0, max_tokens=of.max_tokens)
        return found[[name for name in found if not name.endswith(("[best]", "[offset]"))]]

    return run


def scored_by_default(of: Setting) -> Run:
    """All default scores with their intervals."""
    return lambda: hr.score(of.model, of.tokenizer, of.corpus, max_tokens=of.max_tokens)


def forward(of: Setting) -> Run:
    """The body by transformers' fast attention, and nothing told."""

    def run() -> pd.DataFrame:
        with torch.inference_mode():
            for batch in of.batches:
                of.model.base_model(**of.inputs(batch))
        return pd.DataFrame(index=_heads(of))

    return run


def scored_plainly(of: Setting) -> Run:
    """`output_attentions=True`, of the body: the vocabulary is not needed."""
    model = of.eager()
    names = {"enc-self": "encoder_attentions", "dec-self": "decoder_attentions", "cross": "cross_attentions"}
    if not model.config.is_encoder_decoder:
        names = dict.fromkeys(names, "attentions")

    def collect(batch: Batch) -> Iterator[tuple[Site, Tensor]]:
        with torch.inference_mode():
            output: Any = model.base_model(**of.inputs(batch), output_attentions=True)
        return (((kind, layer), getattr(output, names[kind])[layer]) for kind, layer in of.sites())

    return lambda: _told(of, collect)


def scored_by_lens(of: Setting) -> Run:
    """A cache of all patterns."""
    bridge = lens(of)
    names = {site: f"{of.place(*site)[0]}.hook_pattern" for site in of.sites()}

    def collect(batch: Batch) -> Iterator[tuple[Site, Tensor]]:
        ids, rest = _called(batch)
        with torch.inference_mode():
            _, cache = bridge.run_with_cache(*ids, names_filter=list(names.values()), **rest)
        return ((site, cache[name]) for site, name in names.items())

    return lambda: _told(of, collect)


def scored_by_nnsight(of: Setting) -> Run:
    """A trace that saves what each attention module puts out."""
    net = nnsight(of.eager())
    modules = [net.get(_inside(of, of.place(*site)[1])) for site in of.calls()]

    def collect(batch: Batch) -> Iterator[tuple[Site, Tensor]]:
        with torch.inference_mode(), net.trace(**of.inputs(batch)):
            weights = [module.output[1] for module in modules].save()
        return zip(of.calls(), weights, strict=True)

    return lambda: _told(of, collect)


def _inside(of: Setting, name: str) -> str:
    """Return the name of a module in this class: BertModel has no `bert.`."""
    return name if name in dict(of.model.named_modules()) else name.partition(".")[2]


def _told(of: Setting, collect: Collect) -> pd.DataFrame:
    """Return the statistics in plain torch: what a user of a tool that collects attention writes himself."""
    sums: dict[Site, dict[str, Tensor]] = defaultdict(dict)
    with torch.inference_mode():
        for batch in of.batches:
            for site, weights in collect(batch):
                for name, value in _plain(site[0], weights, batch.queries(site[0]), batch.keys(site[0])).items():
                    sums[site][name] = sums[site].get(name, 0) + value
        rows = [_divided(found) for found in (sums[site] for site in of.sites())]
    columns = {name for row in rows for name in row}
    lacking = torch.full((of.per_layer,), torch.nan, device=of.model.device)
    return pd.DataFrame({name: torch.cat([row.get(name, lacking) for row in rows]) for name in columns}, _heads(of))


def _plain(kind: str, weights: Tensor, queries: TokenView, keys: TokenView) -> dict[str, Tensor]:
    """Return sums over the tokens of a batch, and over how many: weights are [batch, head, query, key]."""
    rows = queries.content[:, None]  # [batch, 1, query]
    real = weights * keys.content[:, None, None]
    top, place = real.max(-1)  # [batch, head, query]
    special = keys.attention_mask & ~keys.content
    sums = {
        "confidence": (top * rows).sum((0, 2)),
        "entropy": -(torch.xlogy(weights, weights).sum(-1) * rows).sum((0, 2)),
        "sink[special]": ((weights * special[:, None, None]).sum(-1) * rows).sum((0, 2)),
        "sink[first]": (weights[..., 0] * rows).sum((0, 2)),
        "queries": rows.sum(),
    }
    if kind == "cross":
        return sums
    steps = torch.arange(weights.shape[-1], device=weights.device)
    sums["distance"] = ((real * (steps[:, None] - steps).abs()).sum(-1) * rows).sum((0, 2))
    sums["mass"] = (real.sum(-1) * rows).sum((0, 2))
    for name, d in OFFSETS.items():
        ahead = kind == "dec-self" and d > 0  # where nothing can be looked at
        there = rows & F.pad(queries.content, (-d, d))[:, None] & (not ahead)
        sums[f"position[{name}]"] = ((place - steps == d) & there).sum((0, 2))
        sums[f"there[{name}]"] = there.sum()
    return sums


def _divided(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    def by(name: str) -> Tensor:
        if name == "distance":
            return sums["mass"]
        return sums[name.replace("position", "there")] if name.startswith("position") else sums["queries"]

    counts = ("queries", "mass", "there")
    return {name: value / by(name) for name, value in sums.items() if not name.startswith(counts)}


# Ablation: the loss of the corpus, summed, without each head.


def ablated(of: Setting) -> Run:
    def run() -> pd.DataFrame:
        sets = {str(head): [head] for head in of.heads}
        name = "loss" if of.writes else "agreement"
        options = {"metric": name, "n_resamples": 0, "max_tokens": of.max_tokens}
        whole = len(of.heads) == len(of.index)
        found = hr.ablate(of.model, of.tokenizer, of.corpus, **({} if whole else {"sets": sets}), **options)
        return found[[f"ablation[{name}]"]].set_axis(_heads(of)).set_axis(["effect"], axis=1)

    return run


def ablated_in_a_loop(of: Setting) -> Run:
    """A full forward for each head, its output zeroed by our gate."""

    if not of.writes:
        return lambda: _agreements(of)

    def without(head: tuple[str, int, int]) -> Iterable[Tensor]:
        with mask_heads(of.model, head_mask(of.model, [head])):
            return [of.model(**of.inputs(batch)).logits for batch in of.batches]

    return lambda: _effects(of, lambda: [of.model(**of.inputs(batch)).logits for batch in of.batches], without)


def _agreements(of: Setting) -> pd.DataFrame:
    """Return how the share of tokens with the intact model's first word falls without each head."""
    with torch.inference_mode():
        first = [of.model(**of.inputs(batch)).logits.argmax(-1) for batch in of.batches]
        rows = []
        for head in of.heads:
            with mask_heads(of.model, head_mask(of.model, [head])):
                same = [
                    (of.model(**of.inputs(batch)).logits.argmax(-1) == words)[batch.source.content]
                    for batch, words in zip(of.batches, first, strict=True)
                ]
            rows.append(float(torch.cat(same).double().mean()) - 1)
    return pd.DataFrame({"effect": rows}, _heads(of))


def ablated_by_lens(of: Setting) -> Run:
    """A hook on the heads' outputs."""
    _check_loss(of)
    bridge = lens(of)

    def hooked(hooks: list) -> list[Tensor]:
        called = [_called(batch) for batch in of.batches]
        return [bridge.run_with_hooks(*ids, fwd_hooks=hooks, **rest) for ids, rest in called]

    def without(head: tuple[str, int, int]) -> Iterable[Tensor]:
        return hooked([(f"{of.place(*head[:2])[0]}.hook_z", lambda z, hook: _zeroed(z, [head[2]]))])  # noqa: ARG005

    return lambda: _effects(of, lambda: hooked([]), without)


def _zeroed(z: Tensor, heads: list[int]) -> Tensor:
    z = z.clone()
    z[:, :, heads] = 0
    return z


def ablated_by_nnsight(of: Setting) -> Run:
    """A trace for each head and batch."""
    _check_loss(of)
    net = nnsight(deepcopy(of.model))

    def without(head: tuple[str, int, int]) -> Iterable[Tensor]:
        out, found = net.get(of.place(*head[:2])[2]), []
        for batch in of.batches:
            with net.trace(**of.inputs(batch)):
                out.input = _zeroed(out.input.unflatten(-1, (of.per_layer, -1)), [head[2]]).flatten(-2)
                logits = net.lm_head.output.save()
            found.append(logits)
        return found

    def intact() -> list[Tensor]:
        found = []
        for batch in of.batches:
            with net.trace(**of.inputs(batch)):
                logits = net.lm_head.output.save()
            found.append(logits)
        return found

    return lambda: _effects(of, intact, without)


def _check_loss(of: Setting) -> None:
    if not of.writes:
        raise NotImplementedError("agreement was written for the plain loop only")


def _heads(of: Setting) -> pd.MultiIndex:
    return pd.MultiIndex.from_tuples(of.heads, names=["kind", "layer", "head"])


def _effects(of: Setting, intact: Callable[[], Iterable[Tensor]], without: Callable) -> pd.DataFrame:
    def total(found: Iterable[Tensor]) -> float:
        pairs = zip(found, of.labels, strict=True)
        return sum(float(F.cross_entropy(one.flatten(0, 1), to.flatten(), reduction="sum")) for one, to in pairs)

    with torch.inference_mode():
        before = total(intact())
        effects = [(total(without(head)) - before) / of.steps for head in of.heads]
    return pd.DataFrame({"effect": effects}, _heads(of))


# Gradient x output of every head: what flows back from the logits of what should be written, one backward pass.


def flowing(of: Setting, rules: str = "gradient") -> Run:
    target = Reference().fit(of.handle, of.batches)

    def run() -> pd.DataFrame:
        found = [head_gradients(of.handle, target, batch, rules=rules, steps="sum") for batch in of.batches]  # type: ignore[arg-type]
        return pd.DataFrame({"flow": sum(each.gradients.double().sum((0, 1)) for each in found).numpy()}, _heads(of))

    return run


def training_step(of: Setting) -> Run:
    """The forward and the gradients of all weights."""
    model = deepcopy(of.model)

    def run() -> pd.DataFrame:
        for number, batch in enumerate(of.batches):
            model.zero_grad(set_to_none=True)
            _value(of, number, model(**of.inputs(batch)).logits).backward()
        return pd.DataFrame(index=_heads(of))

    return run


def flowing_by_lens(of: Setting) -> Run:
    """The outputs of heads kept by hooks, one backward pass: attribution patching towards zero."""
    bridge = lens(of)
    bridge.requires_grad_(False)
    names = [f"{of.place(*site)[0]}.hook_z" for site in of.sites()]

    def run() -> pd.DataFrame:
        total = 0
        for number, batch in enumerate(of.batches):
            kept: dict[str, Tensor] = {}

            def keep(z: Tensor, hook, name: str, kept=kept) -> Tensor:  # noqa: ARG001
                kept[name] = z if z.requires_grad else z.detach().requires_grad_()
                return kept[name]

            hooks = [(name, lambda z, hook, name=name, keep=keep: keep(z, hook, name)) for name in names]
            ids, rest = _called(batch)
            with torch.enable_grad():
                value = _value(of, number, bridge.run_with_hooks(*ids, fwd_hooks=hooks, **rest))
            total = total + _flow(value, [kept[name] for name in names], of)
        return pd.DataFrame({"flow": total}, _heads(of))

    return run


def flowing_by_nnsight(of: Setting) -> Run:
    """The outputs of heads saved in a trace, one backward pass after it."""
    net = nnsight(deepcopy(of.model))
    outs = [net.get(of.place(*site)[2]) for site in of.calls()]
    order = [of.calls().index(site) for site in of.sites()]

    def run() -> pd.DataFrame:
        total = 0
        for number, batch in enumerate(of.batches):
            with net.trace(**of.inputs(batch)):
                kept = [out.input for out in outs].save()
                logits = net.lm_head.output.save()
            total = total + _flow(_value(of, number, logits), [kept[place] for place in order], of)
        return pd.DataFrame({"flow": total}, _heads(of))

    return run


def flowing_by_captum(of: Setting) -> Run:
    """LayerGradientXActivation of the inputs of all output projections."""
    from captum.attr import LayerGradientXActivation

    projections = [of.model.get_submodule(of.place(*site)[2]) for site in of.sites()]

    def run() -> pd.DataFrame:
        total = 0
        for number, batch in enumerate(of.batches):
            rest = {name: value for name, value in of.inputs(batch).items() if name != "input_ids"}

            def value(ids: Tensor, number=number, rest=rest) -> Tensor:
                return _value(of, number, of.model(input_ids=ids, **rest).logits)[None]

            method = LayerGradientXActivation(value, projections)
            found = method.attribute(batch.inputs["input_ids"], attribute_to_layer_input=True)
            total = total + _by_head([each[0] if isinstance(each, tuple) else each for each in found], of)
        return pd.DataFrame({"flow": total}, _heads(of))

    return run


def _value(of: Setting, number: int, logits: Tensor) -> Tensor:
    """Return what is explained: the sum of the logits of what should be written."""
    labels = of.labels[number]
    picked = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return (picked * (labels >= 0)).sum()


def _flow(value: Tensor, kept: list[Tensor], of: Setting) -> Tensor:
    back = torch.autograd.grad(value, kept)
    return _by_head([z * one for z, one in zip(kept, back, strict=True)], of)


def _by_head(found: list[Tensor], of: Setting) -> Tensor:
    """Return sums over examples, tokens and places of each head: [heads of all sites]."""
    split = [each.detach().unflatten(-1, (of.per_layer, -1)) if each.ndim == 3 else each.detach() for each in found]
    return torch.cat([each.sum((0, 1, 3)) for each in split]).double()


# A forward without every second head.


def removed(of: Setting) -> Run:
    """The model with these heads cut out of its weights."""
    small = hr.remove_heads(deepcopy(of.model), _half(of))
    return lambda: _logits(of, lambda batch: small(**of.inputs(batch)).logits)


def whole(of: Setting) -> Run:
    return lambda: _logits(of, lambda batch: of.model(**of.inputs(batch)).logits)


def removed_by_lens(of: Setting) -> Run:
    """Zeroed by a hook at each site: it cannot cut."""
    bridge, hooks = lens(of), []
    for site in of.sites():
        gone = [head for *place, head in _half(of) if tuple(place) == site]
        hooks.append((f"{of.place(*site)[0]}.hook_z", lambda z, hook, gone=gone: _zeroed(z, gone)))  # noqa: ARG005

    def logits(batch: Batch) -> Tensor:
        ids, rest = _called(batch)
        return bridge.run_with_hooks(*ids, fwd_hooks=hooks, **rest)

    return lambda: _logits(of, logits)


def removed_by_nnsight(of: Setting) -> Run:
    """Zeroed in a trace: it cannot cut."""
    net = nnsight(deepcopy(of.model))
    outs = [net.get(of.place(*site)[2]) for site in of.calls()]
    gone = [[head for *place, head in _half(of) if tuple(place) == site] for site in of.calls()]

    def logits(batch: Batch) -> Tensor:
        with net.trace(**of.inputs(batch)):
            for out, heads in zip(outs, gone, strict=True):
                out.input = _zeroed(out.input.unflatten(-1, (of.per_layer, -1)), heads).flatten(-2)
            found = net.lm_head.output.save()
        return found  # noqa: RET504 - nnsight gives the value to the name when the trace ends

    return lambda: _logits(of, logits)


def _half(of: Setting) -> list[tuple[str, int, int]]:
    """Return every second head, or group of heads."""
    size = of.model.config.num_attention_heads // (
        getattr(of.model.config, "num_key_value_heads", None) or of.per_layer
    )
    return [head for head in of.index if head[2] // size % 2 == 0]


def _logits(of: Setting, logits: Logits) -> pd.DataFrame:
    with torch.inference_mode():
        return pd.DataFrame(torch.cat([logits(batch).flatten(0, 1) for batch in of.batches]).numpy())


@dataclass(frozen=True)
class Job:
    """A job: who does it, ours first, and who should give the same numbers as ours."""

    ways: dict[str, Callable[[Setting], Run]]
    same: tuple[str, ...]


JOBS = {
    "score": Job(
        {
            "headroles": scored,
            "all default scores, intervals": scored_by_default,
            "plain loop": scored_plainly,
            "forward, sdpa": forward,
            "TransformerLens": scored_by_lens,
            "nnsight": scored_by_nnsight,
        },
        ("plain loop", "TransformerLens", "nnsight"),
    ),
    "ablate": Job(
        {
            "headroles": ablated,
            "plain loop": ablated_in_a_loop,
            "TransformerLens": ablated_by_lens,
            "nnsight": ablated_by_nnsight,
        },
        ("plain loop", "TransformerLens", "nnsight"),
    ),
    "gradient x output": Job(
        {
            "headroles": flowing,
            "LRP, cp": lambda of: flowing(of, "cp"),
            "training step": training_step,
            "TransformerLens": flowing_by_lens,
            "nnsight": flowing_by_nnsight,
            "captum": flowing_by_captum,
        },
        ("TransformerLens", "nnsight", "captum"),
    ),
    "half of the heads": Job(
        {
            "headroles": removed,
            "whole model": whole,
            "TransformerLens": removed_by_lens,
            "nnsight": removed_by_nnsight,
        },
        ("TransformerLens", "nnsight"),
    ),
}
