"""Imposed attention: each head its own, attention outside the interface, generation, estimates, and what is refused."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from helpers.ablations import terse
from helpers.close import close
from helpers.imposed import lettered, tiny
from helpers.letters import corpus, tokenizer
from helpers.sweeps import swept
from sacrebleu import BLEU
from torch import Tensor

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.models.identity import fingerprint
from headroles.models.parts import sharing
from headroles.models.replacements import ByHead, allowed
from headroles.patterns import Diagonal, First, Offset, Pattern, Previous, Shuffle, Uniform


def outputs(case, replacement, heads):
    with torch.no_grad(), hr.mask_heads(case.model, hr.head_mask(case.model, heads), replacement):
        return case.output(case.model)


def heads_of_first_layer(case, replacement, heads):
    """What the heads of the first layer put out under a mask: [batch, query, head, size]."""
    kept, site = [], case.sites[0]
    with torch.no_grad(), hr.mask_heads(case.model, hr.head_mask(case.model, heads), replacement):
        hook = site.out.register_forward_pre_hook(lambda _, args: kept.append(args[0]))  # after the mask's
        case.output(case.model)
        hook.remove()
    return kept[0].unflatten(-1, (site.heads, site.size))


def test_patterns_of_heads_are_each_imposed_on_its_own():
    case = tiny("bert")
    one, other, named = ("enc-self", 0, 1), ("enc-self", 0, 3), "L0H3"
    replacements = ({one: Offset(-1), named: First()}, Offset(-1), First())
    both, before, first = (heads_of_first_layer(case, replacement, [one, other]) for replacement in replacements)
    assert torch.equal(both[:, :, 1], before[:, :, 1])
    assert torch.equal(both[:, :, 3], first[:, :, 3])
    assert not torch.allclose(before, first)
    assert torch.equal(both[:, :, [0, 2]], before[:, :, [0, 2]])


def test_labels_of_several_heads():
    one, other = ("enc-self", 0, 1), ("enc-self", 0, 3)
    assert ByHead({one: Previous(), other: Previous()}).label == "previous"
    labels = {ByHead({one: Previous(), other: pattern}).label for pattern in (First(), Offset(2))}
    assert len(labels) == 2
    assert all(label.startswith("by-head-") for label in labels)
    assert ByHead({one: Previous(), other: First()}).label == ByHead({other: First(), one: Previous()}).label


def test_fingerprint_distinguishes_code_and_options_of_a_pattern_inside_another():
    def made(place):
        class Fixed(Pattern):
            def targets(self, observation):
                targets = torch.zeros(len(observation.keys.ids), len(observation.places), observation.keys.ids.shape[1])
                targets[..., place] = 1
                return targets

        return Fixed()

    keys = [fingerprint(Shuffle(pattern, seed)) for pattern, seed in ((made(0), 0), (made(1), 0), (made(0), 1))]
    assert len(set(keys)) == 3
    assert fingerprint(Shuffle(made(0), 0)) == keys[0]


LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([[[0, LOWEST, -torch.inf, 0]]], [[[1, 0, 0, 1]]]),
        ([[[2.5, LOWEST, -3, LOWEST + 5]]], [[[1, 0, 1, 0]]]),
        ([[[0, -10000, 0, -1e9]]], [[[1, 0, 1, 0]]]),
        ([[[3, -97, -2, -104]]], [[[1, 0, 1, 0]]]),
        ([[[-150, -100, -50, 0]], [[-0.6, -0.4, -0.2, 0]]], [[[1, 1, 1, 1]], [[1, 1, 1, 1]]]),  # by distance
        ([[[LOWEST, 1, 2, 3]], [[1, LOWEST, 2, 3]]], [[[0, 1, 1, 1]], [[1, 0, 1, 1]]]),  # each head has a mask
        ([[[LOWEST, LOWEST, LOWEST, LOWEST]]], [[[0, 0, 0, 0]]]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_allowed_keys_of_an_additive_mask(mask, expected, dtype):
    given = torch.tensor([mask], dtype=dtype)
    if dtype == torch.float64:
        given = torch.where(given <= LOWEST / 2, torch.finfo(dtype).min, given)
    assert allowed(given).int().tolist() == [expected]


def test_allowed_keys_of_a_mask_in_half_precision():
    lowest = torch.finfo(torch.float16).min
    given = torch.tensor([[[[0, lowest, 1.5, lowest / 1.1]]]], dtype=torch.float16)
    assert allowed(given).tolist() == [[[[True, False, True, False]]]]


@pytest.mark.parametrize(("replacement", "row"), [
    (Previous(), lambda query, _: [query - 1] if query else []),
    (First(), lambda *_: [0]),
    (Uniform(), lambda _, size: range(size)),
    ("uniform", lambda _, size: range(size)),
])  # fmt: skip
def test_values_outside_the_interface(replacement, row):
    """MPNet's own attention, of a text with padding: z = W v, with values recomputed from the states."""
    case = tiny("mpnet")
    ids, head = case.inputs["input_ids"][:1], ("enc-self", 0, 1)
    length = ids.shape[1]
    padded = {
        "input_ids": torch.cat([ids, torch.full((1, 3), case.model.config.pad_token_id)], 1),
        "attention_mask": torch.cat([torch.ones_like(ids), torch.zeros(1, 3, dtype=torch.long)], 1),
    }
    with torch.no_grad(), hr.mask_heads(case.model, hr.head_mask(case.model, [head]), replacement):
        imposed = case.output(case.model, padded)[:, :length]
    slow, states = sharing(case.model), {}
    (site,) = [site for site in hr.attention_sites(slow) if site.key == head[:2]]
    part = slice(site.size, 2 * site.size)
    site.module.register_forward_pre_hook(lambda _, args: states.update(x=args[0]))

    def replaced(_, args):
        z = args[0].clone()
        value = (states["x"] @ site.module.v.weight.T + site.module.v.bias)[..., part]
        for query in range(length):
            if places := list(row(query, length)):
                z[0, query, part] = value[0, places].mean(0)
        return (z,)

    site.out.register_forward_pre_hook(replaced)
    expected = case.output(slow, {"input_ids": ids})
    size = float(expected.abs().max())
    assert float((case.output(case.model, {"input_ids": ids}) - expected).abs().max()) > 1e-3 * size
    assert float((imposed - expected).abs().max()) <= 1e-5 * size


def test_estimates_of_imposed_patterns_bracket_exact_effects():
    case, text = lettered("gpt2"), corpus(40)
    exact, estimated = (
        hr.ablate(case.model, case.tokenizer, text, replacement=Previous(), precision=precision, n_resamples=0)
        for precision in (1.0, 1.1)
    )
    name = "ablation[loss previous precision=1.1]"
    effects = exact["ablation[loss previous]"]
    inside = (estimated[f"{name}.low"] <= effects) & (effects <= estimated[f"{name}.high"])
    assert effects.abs().max() > 1e-2
    assert estimated[f"{name}.examples"].max() <= 40
    assert (estimated[f"{name}.high"] > estimated[f"{name}.low"]).all()
    assert inside.all()


ENCODER = [("enc-self", layer, head) for layer in (0, 1) for head in range(4)]
TEXTS = Corpus("texts", corpus(6).sentences)


def written(model):
    """What a translator writes for each text, one at a time."""
    rows = []
    for sentence in TEXTS:
        inputs = tokenizer()(sentence.text, return_tensors="pt")
        with torch.no_grad():
            rows.append(model.generate(**inputs, num_beams=1, do_sample=False)[0])
    return tokenizer().batch_decode(rows, skip_special_tokens=True)


def test_bleu_under_a_pattern_is_that_of_single_sentences():
    """All heads of the encoder attend to every token alike, but from the end token, as by themselves."""
    model = terse(most=8)
    slow, values = terse(most=8), {}
    for layer in slow.get_encoder().layers:
        module = layer.self_attn
        module.v_proj.register_forward_hook(lambda part, _, output: values.update({part: output}))

        def replaced(_, args, part=module.v_proj):
            z = args[0].clone()
            z[:, :-1] = values[part].mean(1, keepdim=True)
            return (z,)

        module.out_proj.register_forward_pre_hook(replaced)
    texts = [written(model), written(slow)]
    table = hr.ablate(
        model, tokenizer(), TEXTS, metric="bleu", sets={"encoder": ENCODER}, replacement=Uniform(), n_resamples=0
    )
    references = [[sentence.target.text for sentence in TEXTS]]
    intact, imposed = (BLEU().corpus_score(rows, references).score for rows in texts)
    assert abs(imposed - intact) > 1e-3
    assert table.iloc[0, 0] == pytest.approx(imposed - intact, abs=1e-9)


IMPOSED = {("cross", 0, 1): Diagonal()}  # reads the tokens of each forward


def test_an_intact_encoder_that_does_not_run_again_keeps_its_tokens():
    """Each head is ablated beside a hard-coded cross head: variants go together as they go alone."""
    case, text = lettered("marian"), corpus(4)
    sets = {f"{kind}:{head}": [(kind, 0, head)] for kind in ("dec-self", "cross") for head in (0, 2)}
    with hr.mask_heads(case.model, hr.head_mask(case.model, IMPOSED), IMPOSED):
        alone, together = (
            swept(case.model, case.tokenizer, text, [*map(frozenset, sets.values())], variants_at_once=count)
            for count in (1, 8)
        )
        losses = {}
        for name, heads in {"intact": [], **sets}.items():
            with hr.mask_heads(case.model, hr.head_mask(case.model, heads)):
                losses[name] = hr.evaluate(case.model, case.tokenizer, text, ["loss"], n_resamples=0)["value"].iloc[0]
    assert together.tolist() == pytest.approx(alone.tolist(), rel=1e-4, abs=1e-6)
    assert together.tolist() == pytest.approx([losses[name] - losses["intact"] for name in sets], rel=1e-3, abs=1e-5)


def test_states_of_an_encoder_are_not_those_of_another_text():
    case = lettered("marian")
    one, two = (case.tokenizer(text, return_tensors="pt") for text in ("a b c d", "e f g h"))
    decoder = {"decoder_input_ids": torch.tensor([[0, 5, 6, 7]]), "use_cache": False}
    mask = {"attention_mask": one["attention_mask"]}
    with torch.no_grad(), hr.mask_heads(case.model, hr.head_mask(case.model, IMPOSED), IMPOSED):
        plain = case.model(**one, **decoder).logits
        states = case.model.get_encoder()(**one)
        assert torch.equal(case.model(encoder_outputs=states, **mask, **decoder).logits, plain)
        case.model.get_encoder()(**two)
        given = case.model(encoder_outputs=states, input_ids=one["input_ids"], **mask, **decoder).logits
        assert torch.equal(given, plain)
        with pytest.raises(ValueError, match="a pattern needs token ids, got a forward without source ids"):
            case.model(encoder_outputs=states, **mask, **decoder)


# --- uniform attention is the mean of the values that a mask allows -------------------------------------------------


LENGTH, PADDING = 7, 2


class Example(NamedTuple):
    """A model, its inputs, and the keys that each query of a layer may attend to, worked out by hand."""

    model: torch.nn.Module
    inputs: dict[str, Tensor]
    value: str  # the names of the modules of values and of outputs
    out: str
    allowed: Tensor  # bool [batch or 1, query, key]


def text(model, padding=PADDING):
    ids = torch.randint(4, 90, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padding:
        mask[1, -padding:] = 0
        ids[1, -padding:] = model.config.pad_token_id or 0
    return {"input_ids": ids, "attention_mask": mask}


def causal(inputs):
    return torch.ones(LENGTH, LENGTH).tril().bool() & inputs["attention_mask"].bool()[:, None]


def doge():
    model = hr.tiny_model("doge")
    inputs = text(model)
    place = "model.layers.1.self_attn"
    return Example(model, inputs, f"{place}.v_proj", f"{place}.o_proj", causal(inputs))


def doge_of_few_keys():
    """Each query attends to the three keys with the largest biases, of those before it."""
    model = hr.tiny_model("doge", keep_window_size=3)
    inputs = text(model, padding=0)
    place = "model.layers.0.self_attn"
    found = {}
    hook = model.get_submodule(f"{place}.dt_proj").register_forward_hook(lambda *call: found.update(dt=call[-1]))
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    bias = torch.exp(model.get_submodule(place).A * torch.nn.functional.softplus(found["dt"])).transpose(-1, -2)
    bias = bias[:, :, None].expand(-1, -1, LENGTH, -1).masked_fill(~torch.ones(LENGTH, LENGTH).tril().bool(), -1)
    ranks = bias.argsort(-1, descending=True).argsort(-1)
    return Example(model, inputs, f"{place}.v_proj", f"{place}.o_proj", (ranks < 3) & (bias > 0))


def mistral():
    model = hr.tiny_model("mistral", sliding_window=3)
    inputs = text(model)
    near = torch.ones(LENGTH, LENGTH).triu(-2).bool()
    place = "model.layers.1.self_attn"
    return Example(model, inputs, f"{place}.v_proj", f"{place}.o_proj", causal(inputs) & near)


def markuplm():
    """Padding is -10,000, not the lowest number."""
    model = hr.tiny_model("markuplm")
    inputs = text(model)
    allowed = inputs["attention_mask"].bool()[:, None].expand(-1, LENGTH, -1)
    place = "encoder.layer.0.attention"
    return Example(model, inputs, f"{place}.self.value", f"{place}.output.dense", allowed)


def t5():
    """The model adds biases of positions to the mask."""
    model = hr.tiny_model("t5")
    inputs = text(model)
    inputs["decoder_input_ids"] = inputs["input_ids"][:, :3]
    allowed = inputs["attention_mask"].bool()[:, None].expand(-1, LENGTH, -1)
    place = "encoder.block.0.layer.0.SelfAttention"
    return Example(model, inputs, f"{place}.v", f"{place}.o", allowed)


def parakeet(padded):
    """Biases depend on queries and positions; padding is the lowest number."""
    model = hr.tiny_model("parakeet_encoder")
    inputs = {"input_features": torch.randn(2, 56, 16, generator=torch.Generator().manual_seed(0))}
    allowed = torch.ones(2, LENGTH, LENGTH).bool()
    if padded:
        inputs["attention_mask"] = torch.ones(2, 56, dtype=torch.bool)
        inputs["attention_mask"][1, 40:] = False  # five of seven frames, each of eight, are left
        allowed[1, :, 5:] = False
        allowed[1, 5:] = False
    return Example(model, inputs, "layers.1.self_attn.v_proj", "layers.1.self_attn.o_proj", allowed)


def beit():
    model = hr.tiny_model("beit", use_relative_position_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_position_bias_table" in name:
                parameter.normal_(std=3, generator=torch.Generator().manual_seed(1))
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    place = "beit.layers.0.attention"
    allowed = torch.ones(1, 17, 17).bool()  # 16 patches and a class token
    return Example(model, {"pixel_values": pixels}, f"{place}.v_proj", f"{place}.o_proj", allowed)


def swin(shifted):
    """Windows of four by four of eight by eight patches; shifted ones hold patches of up to four regions."""
    model = hr.tiny_model("swin", image_size=32, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_position_bias_table" in name:
                parameter.normal_(std=3, generator=torch.Generator().manual_seed(1))
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    place = f"swin.encoder.layers.0.blocks.{int(shifted)}.attention"
    allowed = torch.ones(8, 16, 16).bool()
    if shifted:  # a patch that came round from the other side is of another region
        side = torch.arange(8).roll(-2) < 2
        region = (2 * side[:, None] + side).view(2, 4, 2, 4).permute(0, 2, 1, 3).reshape(4, 16)  # [window, patch]
        allowed = (region[:, :, None] == region[:, None]).repeat(2, 1, 1)
    return Example(model, {"pixel_values": pixels}, f"{place}.v_proj", f"{place}.o_proj", allowed)


EXAMPLES = {
    "doge": doge, "doge of few keys": doge_of_few_keys, "mistral": mistral, "markuplm": markuplm, "t5": t5,
    "parakeet": lambda: parakeet(padded=False), "parakeet, padded": lambda: parakeet(padded=True), "beit": beit,
    "swin": lambda: swin(shifted=False), "swin, shifted": lambda: swin(shifted=True),
}  # fmt: skip


def by_hand(example, site, head):
    """The output of the model with one head's slice replaced by the mean of the allowed values."""
    values = {}
    group = head // (site.heads // site.kv_heads)
    weights = example.allowed.float()
    weights = weights[:, head] if weights.ndim == 4 else weights
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)

    def keep(_, __, output):
        values["of head"] = output[..., group * site.size : (group + 1) * site.size]

    def change(_, args):
        z = args[0].clone()
        z[..., head * site.size : (head + 1) * site.size] = weights @ values["of head"]
        return (z, *args[1:])

    hooks = [
        example.model.get_submodule(example.value).register_forward_hook(keep),
        example.model.get_submodule(example.out).register_forward_pre_hook(change),
    ]
    with torch.no_grad():
        output = example.model(**example.inputs)[0]
    for hook in hooks:
        hook.remove()
    return output


@pytest.mark.parametrize("name", EXAMPLES)
def test_uniform_attention_is_the_mean_of_the_allowed_values(name):
    example = EXAMPLES[name]()
    site = next(site for site in hr.attention_sites(example.model) if site.out_name == example.out)
    with torch.no_grad():
        intact = example.model(**example.inputs)[0]
    kept = torch.ones(intact.shape[:2], dtype=torch.bool)
    if "attention_mask" in example.inputs and intact.shape[1] == LENGTH:  # padded queries have no keys of their own
        kept = torch.ones(2, LENGTH, dtype=torch.bool)
        kept[1, -PADDING:] = False
    for head in (0, site.heads - 1):
        gates = hr.head_mask(example.model, [(*site.key, head)])
        with torch.no_grad(), hr.mask_heads(example.model, gates, "uniform"):
            found = example.model(**example.inputs)[0]
        expected = by_hand(example, site, head)
        assert (expected - intact)[kept].abs().max() > 1e-3
        close(found[kept], expected[kept])
