"""Laws of closing: gates of one, of zero, in a batch, in a sweep, in generation."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.ablation.effects import ablate_sets
from headroles.models import attention_hooks
from headroles.models.capture import capture_attention
from headroles.models.dummy_inputs import without_cache
from headroles.models.masking import head_mask, mask_heads
from headroles.models.pruned import resized
from headroles.pruning.removal import remove_heads
from headroles.pruning.selection import prune
from headroles.scores import score
from headroles.scores.lrp import lrp_rules
from headroles.scores.lrp.conservation_report import balance, totals
from headroles.tables.frame import Kind
from headroles.testing import reference
from headroles.testing.case import Case, NotAsked, apart, first

GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": 4}
GREEDY |= {"output_logits": True, "return_dict_in_generate": True}


def identity(case: Case) -> float:
    """Gates of one change no bit of the output, whether one for all examples or one for each."""
    ones = torch.ones(2, case.heads)
    return max(float((case.under(gates) - case.plain).abs().max()) for gates in (ones[0], ones))


def zero(case: Case) -> float:
    """A gate of zero does what zeros in the output projection do, in the columns of that head."""
    off, felt = 0.0, 0.0
    for site, head in zip(case.sites, case.some, strict=True):
        alike = [(*each.key, head[2]) for each in case.sites if each.module is site.module]
        shut, copy = case.under(head_mask(case.model, alike)), case.copy()
        weight = copy.get_parameter(f"{site.out_name}.weight").data
        columns = weight if type(site.out).__name__ == "Conv1D" else weight.T  # [what comes in, what goes out]
        place = site.numbers.index(head[2])
        columns[place * site.size : (place + 1) * site.size] = 0
        off = max(off, apart(case.output(copy), shut))
        felt = max(felt, apart(shut, case.plain))
    return off if felt > 0 else float("inf")


def batched(case: Case) -> float:
    """Gates of its own for each example give what they give example by example."""
    gates = _some_open(case)
    heads_per_batch = case.under(gates)
    alone = []
    for number in range(len(gates)):
        with mask_heads(case.model, gates[number]):
            alone.append(case.output(case.model)[number])
    return apart(heads_per_batch, torch.stack(alone))


def effects(case: Case) -> float:
    """`hr.ablate_sets` measures the change of loss that a loop measures, a sentence at a time, a forward for each."""
    sets = {str(head): [head] for head in case.some}
    intact = reference.loss(case, torch.ones(case.heads))
    changes = [reference.loss(case, head_mask(case.model, heads)) - intact for heads in sets.values()]
    found = ablate_sets(case.model, case.tokenizer, case.corpus, sets, n_resamples=0)["ablation[loss]"]
    return float(abs(found.to_numpy() - changes).max()) / max(1.0, intact)


def generation(case: Case) -> float:
    """What is generated under gates is what one writes down word by word, with a whole forward for each."""
    if not case.model.can_generate():
        raise NotAsked(f"{type(case.model).__name__} does not generate")
    if not case.writes and any(site.kind == "enc-self" for site in case.sites):
        raise NotAsked(f"{type(case.model).__name__} looks ahead, so that it is not written word by word")
    source = {name: value for name, value in case.row(0).items() if not name.startswith(("decoder", "attention"))}
    side = "decoder_input_ids" if case.writes else "input_ids"
    with mask_heads(case.model, _some_open(case)[1]), torch.no_grad():
        made: Any = case.model.generate(**source, **GREEDY)
        steps = torch.stack(made.logits, 1)  # [1, step, word]
        before = made.sequences.shape[1] - steps.shape[1]
        written = [{**source, side: made.sequences[:, : before + step]} for step in range(steps.shape[1])]
        again = [case.model(**inputs, **without_cache(case.model)).logits[:, -1] for inputs in written]
    return apart(steps, torch.stack(again, 1))


def _some_open(case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return (torch.rand(2, case.heads, generator=generator) > 0.5).float()  # [batch, heads]


def sites(case: Case) -> float:
    """There are as many sites of as many heads as the model gives out attention weights by itself.

    Where it gives out none, as many as its config says. How many there are too many or too few.
    """
    found = Counter((site.kind, site.heads) for site in case.sites)
    try:
        said = Counter((kind, weights.shape[1]) for (kind, _), weights in case.own.items())
    except NotAsked:
        said = _configured(case)
    return float(((found - said) + (said - found)).total())


def rows(case: Case) -> float:
    """What is watched is what the model gives out by itself, layer by layer."""
    if case.own.keys() != case.watched.keys():
        return float("inf")
    return max(float((case.own[key] - weights).abs().max()) for key, weights in case.watched.items())


def sums(case: Case) -> float:
    """A row of attention sums to one, or with a sink to less; no weight is negative. How far off the worst one is."""
    weights = [one.double() for one in case.watched.values()]
    return max(max(float((one.sum(-1) - 1).max()), float(-one.min())) for one in weights)


def masks(case: Case) -> float:
    """Watched, the model puts out what it does by itself, whatever its attention, on texts of which one is padded.

    What looks at padding, or ahead, puts out something else.
    """
    with capture_attention(case.model, lambda *_: None):
        found = case.output(case.model)
    return apart(_there(case, found), _there(case, case.plain))


def confidence(case: Case) -> float:
    """`hr.score`'s confidence is the mean over tokens of the largest weight that the model itself gives out."""
    corpus = case.corpus
    found = score(case.model, case.tokenizer, corpus, ["confidence"], n_resamples=0)["confidence"]
    return float((torch.tensor(found.to_numpy()) - reference.confidence(case)).abs().max())


def _configured(case: Case) -> Counter[tuple[Kind, int]]:
    """Numbers of heads by the config."""
    config: Any = case.model.config
    layers, heads = (getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads"))
    if not (isinstance(layers, int) and isinstance(heads, int)) or case.writes:
        raise NotAsked("neither its output nor its config says where it attends")
    return Counter({(case.sites[0].kind, heads): layers})


def _there(case: Case, output: Tensor) -> Tensor:
    """The part of an output at places that are not padding."""
    mask = case.inputs.get("decoder_attention_mask" if case.writes else "attention_mask")
    return output[mask.bool()] if mask is not None and output.shape[:2] == mask.shape else output


ROUNDING = 1e-4  # of the largest number: weights that were loaded lie elsewhere, and are multiplied in another order


def cut(case: Case) -> float:
    """Heads cut out do what they do closed, and so does what is loaded from where the rest was saved."""
    expected = case.under(head_mask(case.model, case.some))
    smaller = remove_heads(case.copy(), case.some)
    if not apart(_again(case, case.model), case.plain) <= ROUNDING:
        raise NotAsked(f"transformers does not bring back {type(case.model).__name__} as it was, with all heads too")
    return max(apart(case.output(smaller), expected), apart(_again(case, smaller), expected))


def chosen(case: Case) -> float:
    """`hr.prune` keeps the half of the heads whose gates have the largest slopes, told a sentence at a time.

    How many heads are another choice.
    """
    slopes = reference.importance(case)
    keep = case.heads // 2
    alive = prune(case.copy(), case.tokenizer, case.corpus, "importance", keep=keep)
    kept = set((alive.iloc[:, 0].to_numpy() == 1).nonzero()[0].tolist())
    return float(len(kept ^ set(slopes.argsort(descending=True)[:keep].tolist())))


def _again(case: Case, model: PreTrainedModel) -> Tensor:
    """What a model puts out when it is loaded from where it was saved."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return case.output(resized(type(model)).from_pretrained(folder).eval())


STEPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # gates are moved by: large ones cross kinks, small ones drown in noise


def forward(case: Case) -> float:
    """Under the rules the output is that of eager attention, to the bit."""
    model, ones = case.model, torch.ones(2, case.heads, requires_grad=True)

    def output() -> Tensor:
        with mask_heads(model, ones), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return first(model(**case.inputs, **without_cache(model))).detach()

    model.requires_grad_(False)
    with attention_hooks.attending(model, lambda _: None):
        eager = output()
    with lrp_rules(model, "cp"):
        return float((output() - eager).abs().max())


def conserved(case: Case) -> float:
    """By the rules `cp` all relevance of a number of the output is found again in inputs and biases."""
    model = precise(case)
    report = balance(model, cast(case.inputs, model.dtype), lambda output: _largest(first(output)), "cp")
    return abs(totals(report)["residue"])


def slopes(case: Case) -> float:
    """The gradient of a gate is the change of the output when the gate is moved a little."""
    model = precise(case)
    inputs = cast(case.inputs, model.dtype)
    generator = torch.Generator().manual_seed(3)
    way = torch.randn(case.heads, generator=generator).to(model.dtype)

    def value(gates: Tensor) -> Tensor:
        with mask_heads(model, gates), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _some(first(model(**inputs, **without_cache(model))))

    ones = torch.ones(case.heads, dtype=model.dtype, requires_grad=True)
    with torch.enable_grad():
        slope = float(torch.autograd.grad(value(ones), ones)[0] @ way)
    with torch.no_grad():
        moved = [float(value(1 + step * way) - value(1 - step * way)) / (2 * step) for step in STEPS]
    return min(abs(slope - one) for one in moved) / max(abs(slope), 1e-30)


def precise(case: Case) -> PreTrainedModel:
    """The model in float64; in float32 where it does not run in that."""
    model: PreTrainedModel = deepcopy(case.model).double()
    try:
        case.call(model, cast(case.inputs, torch.float64))
    except (RuntimeError, NotImplementedError):
        return case.copy()
    return model


def cast(inputs: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The same arguments, numbers in another precision."""
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}


def _largest(values: Tensor) -> Tensor:
    return values.flatten(1).amax(-1).sum()


def _some(values: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return (values * torch.randn(values.shape, generator=generator).to(values)).sum()
