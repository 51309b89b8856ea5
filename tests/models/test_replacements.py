"""Imposed attention: each head its own, attention outside the interface, generation, estimates, and what is refused."""

from __future__ import annotations

import pytest
import torch
from helpers.ablations import terse
from helpers.imposed import lettered, tiny
from helpers.letters import corpus, tokenizer
from helpers.sweeps import swept
from sacrebleu import BLEU

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.models.identity import fingerprint
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


def test_masks_of_minus_infinity_and_of_a_bias():
    low = torch.finfo(torch.float32).min
    plain = torch.tensor([[[[0.0, low], [0.0, 0.0]]]])
    assert allowed(plain).tolist() == [[[[True, False], [True, True]]]]
    by_head = torch.tensor([[[[0.0, -90.0, -1e4]], [[0.0, -1.0, -1e4]]]])  # a head that looks no further back
    assert allowed(by_head)[0].any(0).tolist() == [[True, True, False]]


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
    slow, states = case.sharing(), {}
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
        with pytest.raises(ValueError, match="a pattern needs token ids, got a forward without those of the source"):
            case.model(encoder_outputs=states, **mask, **decoder)
