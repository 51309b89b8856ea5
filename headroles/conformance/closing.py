"""Laws of closing: gates of one, of zero, in a batch, in a sweep, in generation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headroles.ablation import ablate_sets
from headroles.conformance import by_hand
from headroles.conformance.case import Case, NotAsked, apart
from headroles.gates import closed, gated
from headroles.probe import without_cache

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
        shut, copy = case.under(closed(case.model, alike)), case.copy()
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
    together = case.under(gates)
    alone = []
    for number in range(len(gates)):
        with gated(case.model, gates[number]):
            alone.append(case.output(case.model)[number])
    return apart(together, torch.stack(alone))


def effects(case: Case) -> float:
    """`hr.ablate_sets` measures the change of loss that a loop measures, a sentence at a time, a forward for each."""
    sets = {str(head): [head] for head in case.some}
    intact = by_hand.loss(case, torch.ones(case.heads))
    changes = [by_hand.loss(case, closed(case.model, heads)) - intact for heads in sets.values()]
    found = ablate_sets(case.model, case.tokenizer, case.corpus, sets, resamples=0)["ablation[loss]"]
    return float(abs(found.to_numpy() - changes).max()) / max(1.0, intact)


def generation(case: Case) -> float:
    """What is generated under gates is what one writes down word by word, with a whole forward for each."""
    if not case.model.can_generate():
        raise NotAsked(f"{type(case.model).__name__} does not generate")
    if not case.writes and any(site.kind == "enc-self" for site in case.sites):
        raise NotAsked(f"{type(case.model).__name__} looks ahead, so that it is not written word by word")
    source = {name: value for name, value in case.row(0).items() if not name.startswith(("decoder", "attention"))}
    side = "decoder_input_ids" if case.writes else "input_ids"
    with gated(case.model, _some_open(case)[1]), torch.no_grad():
        made: Any = case.model.generate(**source, **GREEDY)
        steps = torch.stack(made.logits, 1)  # [1, step, word]
        before = made.sequences.shape[1] - steps.shape[1]
        written = [{**source, side: made.sequences[:, : before + step]} for step in range(steps.shape[1])]
        again = [case.model(**inputs, **without_cache(case.model)).logits[:, -1] for inputs in written]
    return apart(steps, torch.stack(again, 1))


def _some_open(case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return (torch.rand(2, case.heads, generator=generator) > 0.5).float()  # [batch, heads]
