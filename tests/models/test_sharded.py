"""Weights that are spread over processes: exact under tensor parallelism, otherwise refused by all in one sentence."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers.letters import corpus, tokens_of
from helpers.processes import Fork, together
from helpers.zoo import tiny
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaForCausalLM
from transformers.distributed import DistributedConfig

import headroles as hr
from headroles.ablation.shapley import shapley_values

PRELUDE = """
import json, os, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.distributed import DistributedConfig
import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models import identity
from headroles.patterns import Offset
from headroles.tables import frame

folder, rank = Path(sys.argv[1]), os.environ.get("RANK", "alone")
if rank != "alone":
    torch.distributed.init_process_group("gloo")
tokenizer = AutoTokenizer.from_pretrained(folder)
texts = ["a b c d", "b c", "d d a e f g h", "c a", "e f a b", "a"]
corpus = Corpus("letters", [Sentence(text) for text in texts])
asked = Corpus("questions", [Sentence(text, target=Sentence("a")) for text in texts[:3]])
ids = torch.arange(4, 16).view(2, 6)
methods = {
    "IntegratedGradients": {"n_steps": 4},
    "FeatureAblation": {"replacement": "uniform"},
    "ShapleyValueSampling": {"n_samples": 2},
    "AtP": {"node": "query"},
    "AtP*": {},
}

def loaded(**options):
    options = {"distributed_config": DistributedConfig(**options)} if options else {}
    return AutoModelForCausalLM.from_pretrained(folder, **options)

def written(result):
    (folder / f"{rank}.json").write_text(json.dumps(result))
"""

MEASURED = """
model = loaded() if rank == "alone" else loaded(tp_size=2)
masked = [("dec-self", 0, 3), ("dec-self", 1, 0)]
gates = torch.rand(2, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()

def captured():
    weights = []
    with torch.no_grad(), hr.capture_attention(model, lambda site, weight: weights.append(weight)):
        model(ids)
    return torch.stack(weights)

def logits(mask, replacement=None):
    with hr.mask_heads(model, mask, replacement):
        return model(ids).logits

def numbers(table):
    return torch.tensor(table.to_numpy())

def ablated(**options):
    return numbers(hr.ablate(model, tokenizer, corpus, n_resamples=20, **options))

result = {"attention": captured(), "logits": model(ids).logits, "mask": logits(hr.head_mask(model, masked))}
result["gates"] = logits(gates)
(result["gradient"],) = torch.autograd.grad(result["gates"][..., 5].sum(), gates)
for replacement in ("uniform", Offset(-1)):
    result[f"gates, {replacement}"] = logits(gates, replacement)
for score in (None, "importance", hr.Importance(per="token")):
    result[f"score {score}"] = numbers(hr.score(model, tokenizer, corpus, score and [score], n_resamples=20))
norms = numbers(hr.score(model, tokenizer, corpus, ["confidence", "position"], weights="norm", n_resamples=20))
result["score norms"] = norms
result["ablate"] = ablated(study=folder / "study", max_tokens=32)
result["ablate, mean"] = ablated(replacement="mean")
result["ablate, all but one"] = ablated(unit="all_but_one")
result["ablate, sets"] = ablated(sets={"two": masked, "none": []})
result["ablate, precision"] = ablated(precision=1.1)
curve = hr.ablation_curve(model, tokenizer, corpus, {"some": masked}, n_resamples=20)
result["ablate, curve"] = numbers(curve[["value", "low", "change", "change.high"]])
tested = hr.test_roles(model, tokenizer, corpus, {masked[0]: Offset(-1)}, n_resamples=20)
result["ablate, roles"] = numbers(tested.filter(regex=r"^(removed|mean|uniform|own|wrong)$").select_dtypes("number"))
result["evaluate"] = numbers(hr.evaluate(model, tokenizer, corpus, ["loss"]))
for method, options in methods.items():
    result[method] = numbers(hr.attribute(model, tokenizer, corpus, method=method, n_resamples=20, **options))
resampled = hr.attribute(model, tokenizer, corpus, method="AtP*", node="query", replacement="resample")
result["AtP* resample"] = numbers(resampled)
for strategy in ("importance", "-effect", "confidence", "random"):
    result[strategy] = numbers(hr.prune(model, tokenizer, corpus, strategy, keep=3, unit="group", remove=False))
for by in ("integrated-gradients", "ablation"):
    table = hr.cache_budget(model, tokenizer, asked, keep=2, by=by, sink=1, recent=2)
    result[f"ablate, streaming by {by}"] = numbers(table.filter(regex=r"^(effect|effect.low|ranking|retrieval)"))
sites = [(site.heads, site.kv_heads, site.size) for site in hr.attention_sites(model)]
names = [identity.weights_digest(model), identity.identity(model, tokenizer)]
written([sites, names, {name: values.tolist() for name, values in result.items()}])
"""

FOUR = """
import headroles.models.head_model
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

model = loaded()
if rank != "alone":
    mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    apply_tensor_parallelism(model, mesh["tensor"], model._expand_parallel_plan(model.tp_plan))
    model._tp_size = mesh["tensor"].size()  # as from_pretrained does
score = hr.score(model, tokenizer, corpus, ["confidence", "position", "importance"], n_resamples=20, max_tokens=8)
many = hr.ablate(model, tokenizer, corpus, n_resamples=20, max_tokens=64)  # of which processes share the batches
few = hr.ablate(model, tokenizer, corpus, n_resamples=20)  # of which they share the variants
axis = headroles.models.head_model.HeadModel(model, allow_sharded=True).axis
tables = {"score": score, "ablate, many": many, "ablate, few": few}
written([axis.count, axis.rank, {name: table.to_numpy().tolist() for name, table in tables.items()}])
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """The folder of a tiny Llama of two key-value heads with its tokenizer."""
    return saved(tiny("llama-grouped"), tmp_path_factory.mktemp("llama"))


def saved(model, folder):
    model.save_pretrained(folder)
    tokens_of("llama-grouped").save_pretrained(folder)
    return folder


def results(code, folder, *arguments, processes=2):
    """What each of some processes has written."""
    done = together(PRELUDE + code, folder, *arguments, processes=processes)
    assert done.code == 0, done.err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


def alone(code, folder, *arguments):
    """What a process by itself writes, with whole weights."""
    fork = Fork(PRELUDE + code, folder, *arguments)
    assert fork.wait() == 0, fork.said()
    return json.loads((folder / "alone.json").read_text())


def check_close(found, expected):
    """That numbers differ by roundings: relative to the largest of each kind, and ablation to the loss."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        scale = max(np.nanmax(np.abs(values)), 3.0 if name.startswith("ablate") else 0.0)
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-5 * scale, err_msg=name)


@pytest.fixture
def two_processes(monkeypatch):
    """A group of two processes, of which this is the first, and the other answers nothing."""
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def half(llama, two_processes):  # noqa: ARG001
    """A model in the first of two processes, with a tokenizer and a corpus."""
    config = DistributedConfig(tp_size=2)
    return LlamaForCausalLM.from_pretrained(llama, distributed_config=config), tokens_of("llama-grouped"), corpus(3)


REFUSED = {  # call -> function, what needs unsharded weights
    "relevance": (lambda *given: hr.score(*given, ["relevance"]), "for relevance[cp]"),
    "direct": (lambda *given: hr.score(*given, ["direct"]), "for direct[reference]"),
    "DeepLift": (lambda *given: hr.attribute(*given, method="DeepLift"), "for attribution[DeepLift]"),
    "shapley": (shapley_values, ""),
    "removal": (lambda *given: hr.prune(*given, "importance", keep=0.5), "try a ranking with remove=False"),
    "training": (lambda *given: hr.prune(*given, "l0", keep=0.5, remove=False), "for training and removal"),
    "learnt gates": (lambda *given: hr.cache_budget(*given, by="l0", recent=2), "try by='integrated-gradients'"),
    "conservation": (hr.scores.lrp.conservation, ""),
    "copying": (lambda model, *_: hr.scores.copying(model), ""),
    "composition": (lambda model, *_: hr.scores.composition(model), ""),
    "weight_change": (lambda model, *_: hr.weight_change(model, model), ""),
    "BudgetedCache": (lambda model, *_: hr.BudgetedCache(model, None), ""),
    "remove_heads": (lambda model, *_: hr.remove_heads(model, ["L0H0"]), ""),
    "train": (lambda *given: hr.train(*given, "trained"), ""),
    "lrp_rules": (lambda model, *_: hr.lrp_rules(model, "cp"), ""),
    "efficiency": (lambda model, *_: hr.efficiency(model, ["L0H0"]), ""),
}


@pytest.mark.parametrize("call", REFUSED)
def test_functions_that_need_unsharded_weights_refuse_others(half, call):
    function, what = REFUSED[call]
    with pytest.raises(ValueError, match="^the weights of LlamaForCausalLM .*: got a DTensor for .*; try ") as refused:
        function(*half)
    assert what in str(refused.value)


def test_heads_that_processes_cannot_divide_are_refused(half):
    assert [(site.heads, site.kv_heads) for site in hr.attention_sites(half[0])] == [(4, 2)] * 2
    half[0].config.num_key_value_heads = 1
    with pytest.raises(ValueError, match="must divide .* of LlamaForCausalLM, got 2 processes for 4 and 1 heads"):
        hr.attention_sites(half[0])


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("measure", [hr.attention_sites, hr.scores.copying], ids=["sites", "copying"])
def test_weights_that_fsdp_gathers_are_refused(measure):
    model = deepcopy(tiny("bert"))
    fully_shard(model.base_model.encoder.layer[0], mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    with pytest.raises(ValueError, match="BertForMaskedLM.*: got FSDP in bert.encoder.layer.0;.* try one process"):
        measure(model)


@pytest.mark.usefixtures("two_processes")
def test_a_single_weight_that_is_spread_is_refused():
    model = deepcopy(tiny("bert"))
    query = model.base_model.encoder.layer[0].attention.self.query
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    query.weight = torch.nn.Parameter(torch.distributed.tensor.distribute_tensor(query.weight.data, mesh))
    sign = "a DTensor for bert.encoder.layer.0.attention.self.query.weight"
    for measure in (hr.score, hr.ablate):
        with pytest.raises(ValueError, match=f"the weights of BertForMaskedLM .*: got {sign}; "):
            measure(model, tokens_of("bert"), corpus(4), n_resamples=0)


@pytest.mark.slow
def test_two_processes_with_half_of_the_heads_each_measure_what_one_with_all_of_them_does(llama):
    """Also what two have begun, one goes on with: it keeps their batches, and measures those that are lost."""
    first, second = results(MEASURED, llama)
    batches, tables = sorted((llama / "study" / ".sweeps").glob("*.npy")), sorted((llama / "study").glob("*.parquet"))
    assert len(batches) == 6
    assert len(tables) == 2
    for path in (*tables, *batches[::2]):
        path.unlink()
    kept = {path: path.stat().st_mtime_ns for path in batches[1::2]}
    expected = alone(MEASURED, llama)
    assert sorted((llama / "study" / ".sweeps").glob("*.npy")) == batches
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert first == second
    assert first[:2] == expected[:2]  # with one identity: what one has begun, others go on with
    assert first[0] == [[4, 2, 8]] * 2
    check_close(first[2], expected[2])
    gates, model = torch.rand(2, 8, generator=torch.Generator().manual_seed(0)).requires_grad_(), tiny("llama-grouped")
    for layer, parts in zip(model.model.layers, gates.split(4, dim=1), strict=True):
        spread = parts.repeat_interleave(8, dim=1)[:, None]
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args, spread=spread: (args[0] * spread,))
    logits = model(torch.arange(4, 16).view(2, 6)).logits
    (gradient,) = torch.autograd.grad(logits[..., 5].sum(), gates)
    plain = {"gates": logits.tolist(), "gradient": gradient.tolist()}
    check_close({name: first[2][name] for name in plain}, plain)


@pytest.mark.slow
def test_an_axis_of_data_shares_the_work_and_an_axis_of_tensors_the_heads(llama):
    expected, found = alone(FOUR, llama), results(FOUR, llama, processes=4)
    assert [parts[:2] for parts in found] == [[2, 0], [2, 0], [2, 1], [2, 1]]
    for parts in found:
        check_close(parts[2], expected[2])
