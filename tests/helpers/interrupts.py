"""Interrupts at chosen and at random moments, and what the next call of headroles must have undone."""

from __future__ import annotations

import copy
import random
import signal
import sys
from collections import Counter
from functools import cache, partial

import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of
from torch.overrides import _get_current_function_mode_stack

import headroles as hr
from headroles import _changes
from headroles.models import attention_hooks
from headroles.pruning.learned_gates import frozen

HOOKS = (*_changes.HOOKS, "_backward_hooks", "_backward_pre_hooks")
REGISTERS = ("register_forward_hook", "register_forward_pre_hook")  # of torch, in which a hook may be half there
PLACES = ("/headroles/", "/contextlib.py", "/torch/autograd/grad_mode.py", "/torch/overrides.py")
MASK = torch.tensor([0.0, 1, 1, 0, 1, 1, 1, 0])


def subject():
    """A tiny BERT whose linear maps are in train mode, with embeddings that take no gradient."""
    model = zoo.tiny("bert")
    for module in model.modules():
        module.training = isinstance(module, torch.nn.Linear)
    model.get_input_embeddings().weight.requires_grad_(False)
    return model


def inputs():
    ids = torch.tensor([[0, 9, 5, 12, 7, 2], [0, 30, 31, 2, 1, 1]])
    return {"input_ids": ids, "attention_mask": ids.ne(1).long()}


def state(model):
    """Everything that a block changes, in the model and in the process."""
    modules = dict(model.named_modules())
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return {
        "hooks": [[len(vars(module)[kind]) for kind in HOOKS] for module in modules.values()],
        "forwards": [name for name, module in modules.items() if "forward" in vars(module)],
        "attention": [config._attn_implementation for config in attention_hooks.configs_of(model.modules())],
        "modules": [*modules],
        "modes": [module.training for module in modules.values()],
        "gradients": [parameter.requires_grad for parameter in model.parameters()],
        "function modes": _get_current_function_mode_stack(),
        "autograd": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "vmap": torch._C._functorch.maybe_current_level(),
        "compiler": dynamo and dynamo._stance.stance,
        "open": (len(_changes.opened), len(attention_hooks._open_blocks), len(attention_hooks._names)),
    }


def logits(model):
    """The model's own numbers, by its forward alone."""
    with torch.no_grad():
        return model(**inputs()).logits


def difference(model, before, expected):
    """What an interrupt has left, in words; empty if nothing."""
    after = state(model)
    left = [name for name in before if after[name] != before[name]]
    try:
        found = logits(model)
    except Exception as error:
        return [*left, f"forward: {error!r:.80}"]
    return left if any(torch.equal(found, numbers) for numbers in expected) else [*left, "logits"]


def masked(model, replacement=None):
    with hr.mask_heads(model, MASK, replacement):
        return logits(model)


def _captured(model):
    with hr.capture_attention(model, lambda *_: None):
        logits(model)


def _ruled(model):
    ones = torch.ones(8, requires_grad=True)
    with hr.lrp_rules(model, "cp"), hr.mask_heads(model, ones):
        torch.autograd.grad(model(**inputs()).logits.sum(), ones)


@cache
def _gates(model):
    return hr.L0(strength=0.1).gates(model, [("enc-self", 0, 0)], None)


def _gated(model):
    with hr.train_gates(model, _gates(model)), frozen(model, "all"):
        logits(model)


def _scored(name, model):
    hr.score(model, tokens_of("bert"), corpus(2), [name], n_resamples=0)


def _ablated(model, replacement="zero"):
    hr.ablate(model, tokens_of("bert"), corpus(2), replacement=replacement, n_resamples=0)


OPERATIONS = {
    "mask_heads": masked,
    "mask_heads uniform": partial(masked, replacement="uniform"),
    "capture_attention": _captured,
    "lrp_rules": _ruled,
    "train_gates": _gated,
    "ablate": _ablated,
    "ablate resample": partial(_ablated, replacement="resample"),
    "importance": partial(_scored, "importance"),
    "relevance": partial(_scored, "relevance"),
    "confidence": partial(_scored, "confidence"),
    "AtP*": lambda model: hr.attribute(model, tokens_of("bert"), corpus(2), method="AtP*", n_resamples=0),
    "remove_heads": lambda model: hr.remove_heads(model, [("enc-self", 0, 1), ("enc-self", 1, 2)]),
}


class Attack:
    """An operation on a model of its own, to be interrupted many times."""

    def __init__(self, name):
        self.operation, self.permanent = OPERATIONS[name], name == "remove_heads"
        self.model = subject()
        self.expected = [logits(self.model)]
        changed = copy.deepcopy(self.model)
        self.operation(changed)  # and what is found once is known: sites, lazy imports
        if self.permanent:
            self.expected.append(logits(changed))
        else:
            self.operation(self.model)
        logits(self.model)
        self.before = state(self.model)
        self.kept = None  # the traceback, as a notebook keeps it

    def run(self, interrupted):
        """Run the operation by `interrupted`; return what is left at once, and after the next call of headroles."""
        self.kept = None
        model = copy.deepcopy(self.model) if self.permanent else self.model
        self.kept = interrupted(partial(self.operation, model))
        at_once = difference(model, self.before, self.expected)
        hr.attention_sites(model)
        return at_once, difference(model, self.before, self.expected)


def _is_ours(code):
    return any(place in code.co_filename for place in PLACES) or code.co_name in REGISTERS


def events(run):
    """How often each place in the code is reached in a run: (file, function, line, event) -> times."""
    places = Counter()

    def trace(frame, event, _):
        if not _is_ours(frame.f_code):
            return None
        places[frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lineno, event] += 1
        return trace

    _traced(trace, run)
    return places


def at_event(place, time, run):
    """Run something with an interrupt at a place in the code, the n-th time; return the interrupt, or None."""
    file, name, count = *place[:2], 0

    def trace(frame, event, value):
        nonlocal count
        del value  # what a function returns would live as long as the traceback, which a real interrupt does not keep
        if frame.f_code.co_qualname != name or frame.f_code.co_filename != file:
            return None  # most frames are not traced line by line: that would take most of the time
        count += (frame.f_lineno, event) == place[2:]
        if count == time:
            raise KeyboardInterrupt(f"{file}:{frame.f_lineno}")
        return trace

    return _traced(trace, run)


def _traced(trace, run):
    before, hook = sys.gettrace(), sys.unraisablehook
    sys.unraisablehook = lambda _: None  # Python swallows some interrupts: in `__del__`, or where generators are closed
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt as interrupt:
        return interrupt
    finally:
        sys.settrace(before)
        sys.unraisablehook = hook
    return None


def by_signal(delays, run):
    """Run something with Ctrl-C after each of some seconds; return the interrupt or what it has become, or None.

    Compiled code of others may swallow it: pandas takes an interrupted check of a type for its failure.
    """
    left, hook = list(delays), sys.unraisablehook
    sys.unraisablehook = lambda _: None

    def handle(*_):
        if left:
            signal.setitimer(signal.ITIMER_REAL, left.pop(0))
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    caught = None
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, left.pop(0))
            run()
        except (KeyboardInterrupt, Exception) as error:
            caught = error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as interrupt:  # while the other one was on its way
        caught = interrupt
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    sys.unraisablehook = hook
    return caught


def left_by(name, most):
    """What interrupts at some places leave after the next call of headroles: {place and time: what}."""
    attack = Attack(name)
    model = copy.deepcopy(attack.model) if attack.permanent else attack.model
    found = events(partial(attack.operation, model))
    moments = sorted({(place, time) for place, count in found.items() for time in (1, count)})
    chosen = random.Random(0).sample(moments, min(most, len(moments)))
    outcomes = {moment: attack.run(partial(at_event, *moment))[1] for moment in chosen}
    return {moment: left for moment, left in outcomes.items() if left}, len(outcomes)
