"""The checks of `check_model`: each returns how far a result of the library is from an independent one."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.ablation.effects import ablate, evaluate
from headroles.data.corpus import Corpus
from headroles.models.attention_hooks import attending, without_cache
from headroles.models.head_model import HeadModel
from headroles.models.heads import capture_attention
from headroles.models.masking import head_mask, mask_heads
from headroles.models.parts import sharing
from headroles.models.pruned import resized
from headroles.pruning.removal import remove_heads
from headroles.pruning.selection import prune
from headroles.scores import score
from headroles.scores.lrp import lrp_rules
from headroles.scores.lrp.conservation_report import balance, totals
from headroles.tables.frame import Kind
from headroles.testing import reference
from headroles.testing.case import MANY, Case, NotAsked, cast, difference, first


def identity(case: Case) -> float:
    """Check that masks of ones change no bit of the output, also with a mask per example."""
    ones = torch.ones(2, case.heads)
    return max(float((case.masked(gates) - case.plain).abs().max()) for gates in (ones[0], ones))


def zero(case: Case) -> float:
    """Check that a gate of zero equals zeros in the columns of the output projection."""
    off, effect, copy = 0.0, 0.0, sharing(case.model)
    sites_by_key = {site.key: site for site in case.sites}
    for head in case.sample:
        site = sites_by_key[head[:2]]
        heads = [(*other.key, head[2]) for other in case.sites if other.module is site.module]
        masked = case.masked(head_mask(case.model, heads))
        weight = copy.get_parameter(f"{site.out_name}.weight")
        before, weight.data = weight.data, weight.data.clone()
        columns = weight.data if type(site.out).__name__ == "Conv1D" else weight.data.T  # [input, output]
        place = site.numbers.index(head[2])
        columns[place * site.size : (place + 1) * site.size] = 0
        off = max(off, difference(case.output(copy), masked))
        weight.data = before
        effect = max(effect, difference(masked, case.plain))
    return off if effect > 0 else float("inf")


def batched(case: Case) -> float:
    """Check that a batch gives each mask and each text, short or long, what it gives it alone."""
    gates = _random_masks(case)
    output = case.masked(gates)  # first: a model that packs its examples into one row refuses a mask of each
    single = [case.masked(mask)[number] for number, mask in enumerate(gates)]
    off = difference(output, torch.stack(single))
    return max(off, _between_batches_and_single_texts(case)) if "input_ids" in case.inputs else off


def _between_batches_and_single_texts(case: Case) -> float:
    """Return the largest difference between the states of a text in a batch of `hr.score` and alone."""
    handle, off = HeadModel(case.model, case.tokenizer), 0.0
    encoded = handle.encode(case.lengths, max_tokens=4 * MANY)
    with torch.no_grad(), handle.evaluating():
        for batch in handle.batches(encoded, max_tokens=4 * MANY):
            for number, states in zip(batch.numbers, handle.forward_body(batch)[0], strict=True):
                alone = handle.forward_body(reference.read(case, case.lengths.sentences[number]))[0][0]
                off = max(off, difference(states[: len(alone)], alone))
    return off


def effects(case: Case) -> float:
    """Check that `hr.ablate` measures the changes of loss of a plain loop over sentences."""
    sets = {str(head): [head] for head in case.sample}
    intact = reference.loss(case, torch.ones(case.heads))
    changes = [reference.loss(case, head_mask(case.model, heads)) - intact for heads in sets.values()]
    table = ablate(case.model, case.tokenizer, case.corpus, sets=sets, n_resamples=0)
    return float(abs(table["ablation[loss]"].to_numpy() - changes).max()) / max(1.0, intact)


def loss(case: Case) -> float:
    """Check that the metric `loss` of each sentence is the loss that the model itself computes."""
    off = 0.0
    for sentence in case.corpus:
        with torch.no_grad():
            expected = float(reference.model_loss(case, sentence))
        table = evaluate(case.model, case.tokenizer, Corpus("one", (sentence,)), ["loss"], n_resamples=0)
        off = max(off, abs(float(table["value"].iloc[0]) - expected) / max(1.0, abs(expected)))
    return off


def generation(case: Case) -> float:
    """Check that generation under a mask equals one full forward per token."""
    if not case.model.can_generate():
        raise NotAsked(f"{type(case.model).__name__} does not generate")
    if not case.is_encoder_decoder and any(site.kind == "enc-self" for site in case.sites):
        raise NotAsked(f"{type(case.model).__name__} attends to later tokens, so it does not generate token by token")
    try:
        intact = _between_generation_and_forwards(case, nullcontext)
    except (TypeError, LookupError, RuntimeError, AttributeError) as error:
        raise NotAsked(f"{type(case.model).__name__} does not generate from a text alone") from error
    off = _between_generation_and_forwards(case, partial(mask_heads, case.model, _random_masks(case)[1]))
    if not off <= ROUNDING and not intact <= max(ROUNDING, off / 10):
        raise NotAsked(f"{type(case.model).__name__}, even with all heads, does not generate as a forward predicts")
    return off


def _between_generation_and_forwards(case: Case, masked: Callable[[], AbstractContextManager[object]]) -> float:
    """Return the largest difference between the logits of generation and of a full forward for each token."""
    source = {name: value[:1] for name, value in case.inputs.items() if not name.startswith(("decoder", "attention"))}
    side = "decoder_input_ids" if case.is_encoder_decoder else "input_ids"
    with masked(), torch.no_grad():
        output = case.model.generate(
            **source, do_sample=False, num_beams=1, max_new_tokens=4, output_logits=True, return_dict_in_generate=True
        )
        steps = torch.stack(output.logits, 1)  # [1, step, token]
        before = output.sequences.shape[1] - steps.shape[1]
        prefixes = [{**source, side: output.sequences[:, : before + step]} for step in range(steps.shape[1])]
        expected = [case.model(**inputs, **without_cache(case.model)).logits[:, -1] for inputs in prefixes]
    return difference(steps, torch.stack(expected, 1))


def _random_masks(case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return (torch.rand(2, case.heads, generator=generator) > 0.5).float()  # [batch, heads]


def sites(case: Case) -> float:
    """Check that the sites and heads are those of the attention the model returns, or of its config."""
    counts = Counter((site.kind, site.heads) for site in case.sites if site.heads)
    try:
        expected = Counter((kind, weights.shape[1]) for (kind, _), weights in case.returned.items())
    except NotAsked:
        expected = _configured(case)
    return float(((counts - expected) + (expected - counts)).total())


def rows(case: Case) -> float:
    """Check that captured attention equals the attention the model returns, layer by layer."""
    if case.returned.keys() != case.captured.keys():
        return float("inf")
    return max(float((case.returned[key] - weights).abs().max()) for key, weights in case.captured.items())


def sums(case: Case) -> float:
    """Check that attention is never negative and sums to one per query, or to less with a sink."""
    layers = [weights.double() for weights in case.captured.values()]
    return max(max(float((weights.sum(-1) - 1).max()), float(-weights.min())) for weights in layers)


def masks(case: Case) -> float:
    """Check that capturing attention leaves the output as it is, also for a padded text."""
    with capture_attention(case.model, lambda *_: None):
        output = case.output(case.model)
    return difference(_unpadded(case, output), _unpadded(case, case.plain))


def confidence(case: Case) -> float:
    """Check that `hr.score` gives the confidence of the attention the model returns."""
    corpus = case.corpus  # before the tokenizer, since it raises NotAsked for a model that reads no text
    table = score(case.model, case.tokenizer, corpus, ["confidence"], n_resamples=0)
    return float((torch.tensor(table["confidence"].to_numpy()) - reference.confidence(case)[case.left]).abs().max())


def _configured(case: Case) -> Counter[tuple[Kind, int]]:
    config = case.model.config
    layers, heads = (getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads"))
    if not (isinstance(layers, int) and isinstance(heads, int)) or case.is_encoder_decoder:
        raise NotAsked("neither the output nor the config of the model says how many heads it has")
    return Counter({(case.sites[0].kind, heads): layers})


def _unpadded(case: Case, output: Tensor) -> Tensor:
    mask = case.inputs.get("decoder_attention_mask" if case.is_encoder_decoder else "attention_mask")
    return output[mask.bool()] if mask is not None and output.shape[:2] == mask.shape else output


ROUNDING = 1e-4  # of the largest number: loaded weights are elsewhere in memory, and multiplied in another order


def cut(case: Case) -> float:
    """Check that removing heads equals masking them, also after saving and loading."""
    expected = case.masked(head_mask(case.model, case.sample))
    pruned, loaded = _saved(case, lambda: remove_heads(sharing(case.model), case.sample))
    off = difference(loaded, expected)
    if not off <= ROUNDING and not difference(_saved(case, lambda: case.model)[1], case.plain) <= ROUNDING:
        raise NotAsked(
            f"transformers does not save and load {type(case.model).__name__} unchanged, even with all heads"
        )
    return max(difference(pruned, expected), off)


def _saved(case: Case, build: Callable[[], PreTrainedModel]) -> tuple[Tensor, Tensor]:
    """Return the outputs of a model before it is saved and after it is loaded; it is in memory once."""
    with tempfile.TemporaryDirectory() as folder:
        model = build()
        kind, before = resized(type(model)), case.output(model)
        model.save_pretrained(folder, max_shard_size="64MB")  # safetensors makes a copy of a file in memory
        del model
        return before, case.output(kind.from_pretrained(folder).eval())


def chosen(case: Case) -> float:
    """Check that `hr.prune` keeps the half of the heads with the largest gradients of their gates."""
    importance = reference.importance(case)[case.left]
    keep = len(importance) // 2
    table = prune(sharing(case.model), case.tokenizer, case.corpus, "importance", keep=keep, remove=False)
    kept = set((table.iloc[:, 0].to_numpy() == 1).nonzero()[0].tolist())
    return float(len(kept ^ set(importance.argsort(descending=True)[:keep].tolist())))


RESIDUE, SLOPE = 1e-4, 1e-2  # of the relevance of an output; of the slope along a direction
STEPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of finite differences: large ones cross kinks, small ones are lost in rounding


def forward(case: Case) -> float:
    """Check that the output under the LRP rules is that of eager attention, bit for bit."""
    model, ones = case.model, torch.ones(2, case.heads, requires_grad=True)

    def output() -> Tensor:
        with mask_heads(model, ones), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return first(model(**case.inputs, **without_cache(model))).detach()

    model.requires_grad_(False)
    with attending(model, lambda _: None):
        eager = output()
    with lrp_rules(model, "cp"):
        return float((output() - eager).abs().max())


def conserved(case: Case) -> float:
    """Check that the LRP rules `cp` conserve the relevance of an output in inputs and biases."""

    def largest(output: Any) -> Tensor:
        return first(output).flatten(1).amax(-1).sum()

    def residue(model: PreTrainedModel) -> float:
        report = balance(HeadModel(model), cast(case.inputs, model.dtype), largest, "cp")
        return abs(totals(report)["residue"])

    return case.within(RESIDUE, residue)


def head_gradients(case: Case) -> float:
    """Check that the gradient of the gates equals a finite difference."""
    return case.within(SLOPE, partial(_difference_of_gradients, case))


def _difference_of_gradients(case: Case, model: PreTrainedModel) -> float:
    inputs = cast(case.inputs, model.dtype)
    generator = torch.Generator().manual_seed(3)
    direction = torch.randn(case.heads, generator=generator).to(model.dtype)

    def value(gates: Tensor) -> Tensor:
        with mask_heads(model, gates), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            values = first(model(**inputs, **without_cache(model)))
        return (values * torch.randn(values.shape, generator=torch.Generator().manual_seed(4)).to(values)).sum()

    ones = torch.ones(case.heads, dtype=model.dtype, requires_grad=True)
    with torch.enable_grad():
        gradients = torch.autograd.grad(value(ones), ones)[0]  # [head]
    with torch.no_grad():
        differences = [float(value(1 + h * direction) - value(1 - h * direction)) / (2 * h) for h in STEPS]
    along = float(gradients @ direction)
    size = float(gradients.norm() * direction.norm()) / case.heads**0.5  # gradients may cancel along the direction
    off = min(abs(along - other) for other in differences)
    return float(off / max(abs(along), size, 1e-30))
