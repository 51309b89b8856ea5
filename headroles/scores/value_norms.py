"""Value norms: the length of the vector that a head moves from each key, before its attention weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headroles._restoration import Block, Changes
from headroles.models.attention_hooks import Call, attending
from headroles.models.dummy_inputs import dummy_inputs
from headroles.models.head_model import HeadModel
from headroles.models.masking import read_heads
from headroles.models.sites import Site, unreadable_weight
from headroles.models.weights.sharded import gathered, joined, own
from headroles.tables.frame import Kind

NEEDS = "norms need the values and the output projection of every head"


class ValueNorms:
    """Norms ||f(x)|| of the values of all sites, of which `f(x) = (x W_V + b_V) W_O` (Kobayashi et al. 2020).

    Values are those of the model's own attention call, so that norms, rotations and latents before it are in them.
    Nothing is computed until a norm is asked for.
    """

    def __init__(self, model: HeadModel) -> None:
        self.model, self.values, self.factors = model, dict[nn.Module, Tensor](), dict[tuple[Kind, int], Tensor]()

    def reading(self) -> Block[None]:
        """Keep the values of the latest attention call of each module within the block."""

        def keep(call: Call) -> None:
            self.values = {call.module: call.value}

        def begin(changes: Changes) -> None:
            changes.add(lambda: setattr(self, "values", {}))
            changes.enter(attending(self.model.model, keep))

        return Block(begin)

    def of(self, site: Site) -> Tensor:
        """Return ||f(x)|| of each key of the latest call of a site for each head: float32 [batch, heads, key]."""
        if fault := _missing(self.model):
            raise ValueError(fault)
        value = self.values[site.module].float()  # [batch, key-value heads, key, size], of those in this process
        if site.key not in self.factors:
            self.factors[site.key] = own(_triangles(site), site.group, 0).to(value)
        factors = self.factors[site.key]
        value = value.repeat_interleave(len(factors) // value.shape[1], dim=1)  # [batch, heads, key, size]
        return joined((value @ factors.mT).norm(dim=-1), site.group, 1)


def unreadable(model: HeadModel) -> str | None:
    """Return why the values of a model's heads or their output projections cannot be read; None if they can.

    This makes a small forward: a gate after attention would change what values become.
    """
    if fault := _missing(model):
        return fault
    if changed := _changed(model):
        name = model.name
        return f"{NEEDS}: {changed} in {name} changes the outputs of its heads before its output projection"
    return None


def output_weight(site: Site) -> Tensor:
    """Return the weight of a site's output projection: [heads x size, width], as GPT-2's Conv1D has it."""
    weight = gathered(site.out.weight)  # type: ignore[arg-type, union-attr]
    return weight if type(site.out).__name__ == "Conv1D" else weight.mT


def _missing(model: HeadModel) -> str | None:
    """Why there are no values or no output projections, without a forward."""
    name = model.name
    for site in model.sites:
        if site.outside:
            return f"{NEEDS}: {site.name} in {name} attends outside transformers' attention interface"
        if site.out is None:
            return f"{NEEDS}: another operation stands between {site.name} in {name} and its output projection"
        if fault := unreadable_weight(site, name):
            return f"{NEEDS}: {fault}"
    if model.offloaded:
        return f"{NEEDS}: some weights of {name} are offloaded; try a device that holds them all"
    return None


def _changed(model: HeadModel) -> str | None:
    """The first site with another input of its output projection than attention gives (a gate), by a small forward."""
    groups = {site.module: site.group for site in model.sites}
    outputs: dict[nn.Module, Tensor] = {}
    names: list[str] = []

    def compare(site: Site, z: Tensor) -> None:
        if not torch.equal(z.flatten(), outputs[site.module].flatten()):
            names.append(site.name)

    def keep(call: Call) -> None:
        outputs[call.module] = joined(call.out, groups.get(call.module), 2)

    with model.evaluating() as changes, torch.no_grad():
        read_heads(changes, model.model, model.sites, compare)
        changes.enter(attending(model.model, keep))
        model.forward_body(dummy_inputs(model.model))
    return names[0] if names else None


def _triangles(site: Site) -> Tensor:
    """R of W_O^T = Q R for each head: ||v W_O|| = ||R v||, at the cost of size x size; [heads, rank, size]."""
    weight = output_weight(site).detach().double().cpu().unflatten(0, (site.heads, site.size))  # [heads, size, width]
    factors: Tensor = torch.linalg.qr(weight.mT, mode="r").R
    return factors
