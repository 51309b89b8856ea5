"""Hard-coded heads: pruned heads with a role stay and attend by its pattern, in training and in forwards after it."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import pandas as pd
import pytest
import torch
from helpers import letters, zoo
from helpers.commands import run
from helpers.imposed import at, by_loop
from helpers.messages import whole
from helpers.prunings import learnt, no_training
from helpers.trainings import DRY, films, same_weights, tokenizer, translator, untrained
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.patterns import Dependency, Diagonal, Offset, Special
from headroles.pruning.hard_coding import imposed
from headroles.tables import frame
from headroles.tables.io import load_table

TUNE = {"epochs": 1, "rate": 1e-3, "batch": 16}
PATTERNS = {("enc-self", 0, 1): Offset(-1), ("enc-self", 0, 2): Special(), ("enc-self", 0, 3): Dependency("obj")}
ALL = {("enc-self", layer, head): Offset(-1) for layer in (0, 1) for head in range(4)}


def roles_of(heads, role="positional[-1]"):
    """A table of roles."""
    index = hr.models.head_index(learnt())
    held = [head in heads for head in index]
    return frame.table({role: held, f"{role}.stability": 1.0}, index, "made:by hand")


def inputs(size=6):
    (batch,) = HeadModel(learnt(), tokenizer()).batches(HeadModel(learnt(), tokenizer()).encode(films(size)))
    return batch


@torch.no_grad()
def test_in_any_forward_a_pattern_is_that_of_batches():
    """Special tokens are no queries of an offset, and targets of `Special`; without a tokenizer they are queries."""
    model, batch, table = learnt(), inputs(), pd.DataFrame(index=hr.models.head_index(learnt()))
    assert not batch.source.attention_mask.all()
    for pattern in (Offset(-1), Special()):
        handle, head = HeadModel(model, tokenizer()), ("enc-self", 0, 1)
        table["x.hard_coded"] = [float(row == head) for row in table.index]
        with handle.mask(handle.head_mask([head]), pattern.of(batch)):
            expected = model(**batch.inputs).logits
        with hr.hard_code(model, tokenizer(), table, {head: pattern}):
            found = model(**batch.inputs).logits
        assert torch.equal(found, expected)
        assert not torch.allclose(found, model(**batch.inputs).logits, atol=1e-4)
        if not pattern.needs_special:  # else it is refused (`test_sink`)
            with hr.mask_heads(model, hr.head_mask(model, [head]), pattern):
                assert not torch.allclose(found, model(**batch.inputs).logits, atol=1e-4)


@torch.no_grad()
def test_the_start_token_of_a_decoder_is_no_token_of_its_text():
    model, words = deepcopy(zoo.tiny("marian")), letters.tokenizer()
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = (
        words.unk_token_id
    )  # no special one
    handle = HeadModel(model, words)
    (batch,) = handle.batches(handle.encode(letters.corpus(5)))
    for head, pattern in ((("dec-self", 0, 1), Offset(-1)), (("cross", 0, 1), Diagonal())):
        table = pd.DataFrame({"x.hard_coded": 1.0}, index=pd.MultiIndex.from_tuples([head]))
        with handle.mask(handle.head_mask([head]), pattern.of(batch)):
            expected = model(**batch.inputs).logits
        with hr.hard_code(model, words, table, {head: pattern}):
            found = model(**batch.inputs).logits
        assert torch.equal(found, expected)
        assert not torch.allclose(found, model(**batch.inputs).logits, atol=1e-5)


def test_pruned_heads_with_a_pattern_stay_and_others_are_removed(caplog):
    model = deepcopy(learnt())
    table = hr.prune(model, tokenizer(), films(24), "-top", keep=2, substitute=PATTERNS)
    plain = hr.prune(learnt(), tokenizer(), films(24), "-top", keep=2, remove=False)
    label = "survival[-top 2]"
    assert table[label].tolist() == plain[label].tolist()  # what goes is decided as always
    gone = table.index[table[label] == 0]
    hard = [head for head in list(PATTERNS)[:2] if head in gone]
    assert hard
    assert table.index[table[f"{label}.hard_coded"] == 1].tolist() == hard
    assert "1 heads have roles that cannot be hard-coded" in caplog.text
    left = hr.models.head_index(model).tolist()
    assert left == [head for head in table.index if head in hard or head not in gone]
    assert f"{label}.hard_coded" not in plain


@torch.no_grad()
def test_what_is_left_is_removal_of_some_and_a_loop_for_others(tmp_path):
    """After saving and loading, the block is a slow loop over the queries of the removed model."""
    model, head = deepcopy(learnt()), ("enc-self", 0, 1)
    table = hr.prune(model, tokenizer(), films(24), "-top", keep=1, substitute=roles_of([head]))
    hr.save(model, tokenizer(), tmp_path / "smaller")
    loaded, words = hr.load(tmp_path / "smaller", cls="AutoModelForSequenceClassification")
    row = words("the film was good", return_tensors="pt")
    size = row["input_ids"].shape[1]
    with hr.hard_code(loaded, words, table, roles_of([head])):
        found = loaded(**row).logits
    site = next(site for site in hr.attention_sites(loaded) if site.layer == 0)
    with by_loop(
        loaded, site, site.numbers.index(1), lambda query, _: at(query - 1, size) if 1 < query < size - 1 else None
    ):
        expected = loaded(**row).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, loaded(**row).logits, atol=1e-4)


def attend(module, query, key, value, mask, scaling, **_):
    """Attention with the heads of HARD at the token before, each content token of each text at a time."""
    mask = torch.zeros(len(query), 1, 1, key.shape[2]) if mask is None else mask  # additive: [batch, 1, query, key]
    weights = (query @ key.transpose(2, 3) * scaling + mask).softmax(-1)
    is_hard, before = torch.zeros_like(weights, dtype=torch.bool), torch.zeros_like(weights)
    for row, length in enumerate((mask[:, 0, 0] > -1).sum(-1).tolist()):
        for head in HARD.get(module, ()):
            for place in range(2, length - 1):  # between CLS and SEP, and not the first
                is_hard[row, head, place] = True
                before[row, head, place, place - 1] = 1
    return (torch.where(is_hard, before, weights) @ value).transpose(1, 2).contiguous(), weights


HARD = {}  # module -> heads
AttentionInterface.register("hard-coded", attend)
AttentionMaskInterface.register("hard-coded", eager_mask)


def test_training_after_is_with_hard_coded_heads(tmp_path):
    """As training with an attention function in which these heads are so; finished training is of these patterns."""
    model, twin, again, other = (untrained(num_hidden_layers=2, **DRY) for _ in range(4))
    options = {"keep": 3, "train": "after", "tune": TUNE, "folder": tmp_path}
    table = hr.prune(model, tokenizer(), films(32), "-top", **options, substitute=ALL)
    hard = table.index[table["survival[-top 3].hard_coded"] == 1]
    assert len(hard) == 5
    assert len(hr.models.head_index(model)) == 8  # nothing is removed
    for site in hr.attention_sites(twin):
        HARD[site.module] = [head for _, layer, head in hard if layer == site.layer]
    twin.set_attn_implementation("hard-coded")
    hr.train(twin, tokenizer(), films(32), tmp_path / "twin", **TUNE)
    same_weights(model, twin, precision=1e-5)
    plain = untrained(num_hidden_layers=2, **DRY)
    hr.train(plain, tokenizer(), films(32), tmp_path / "plain", **TUNE)
    values = [name for name in dict(plain.named_parameters()) if "value.weight" in name]
    assert not any(torch.allclose(plain.get_parameter(name), twin.get_parameter(name), atol=1e-4) for name in values)
    hr.prune(again, tokenizer(), films(32), "-top", **options, substitute=ALL)  # is loaded
    same_weights(again, model)
    hr.prune(other, tokenizer(), films(32), "-top", **options, substitute=dict.fromkeys(ALL, Offset(1)))
    assert not torch.equal(other.get_parameter(values[0]), model.get_parameter(values[0]))


def test_a_study_keeps_which_heads_are_hard_coded(tmp_path):
    study, label = tmp_path / "study", "survival[-top 2]"
    message = (
        "no roles to substitute: got substitute=True without roles in a study; expected a study with them, or "
        "substitute=hr.roles(...)"
    )
    options = {"keep": 2, "remove": False, "study": study}
    for given in (study, None):
        with pytest.raises(ValueError, match=whole(message)):
            hr.prune(learnt(), tokenizer(), films(24), "-top", **options | {"study": given}, substitute=True)
    hr.Study(study).save("roles", roles_of([("enc-self", 0, 0), ("enc-self", 0, 1)]))
    table = hr.prune(learnt(), tokenizer(), films(24), "-top", **options, substitute=True)
    kept = load_table(study / "survival--top.parquet")
    pd.testing.assert_frame_equal(kept[[*table]], table, check_exact=False)
    assert table[f"{label}.hard_coded"].sum() > 0
    again = hr.prune(learnt(), tokenizer(), films(24), "-top", **options)
    assert list(again) == [label, f"{label}.turn"]
    other = hr.prune(learnt(), tokenizer(), films(24), "-top", **options, substitute=roles_of([("enc-self", 0, 2)]))
    assert other[f"{label}.hard_coded"].tolist() != table[f"{label}.hard_coded"].tolist()
    assert load_table(study / "survival--top.parquet")[f"{label}.hard_coded"].tolist() == other.iloc[:, -1].tolist()


def test_tables_and_roles_that_do_not_fit_are_refused():
    model, table = learnt(), hr.prune(learnt(), tokenizer(), films(24), "top", keep=2, remove=False)
    message = (
        "no table of hard-coded heads: got 0 columns .hard_coded; expected one, as of hr.prune(..., substitute=roles)"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.hard_code(model, tokenizer(), table, PATTERNS)
    table["survival[top 2].hard_coded"] = 1.0
    message = "no pattern for enc-self:0:0: got roles of other heads; expected those that were given to prune"
    with pytest.raises(ValueError, match=whole(message)):
        hr.hard_code(model, tokenizer(), table, PATTERNS)
    decoder = hr.tiny_model("gpt2")
    message = r"^a decoder cannot look ahead: got Offset\(offset=1\) for "
    with pytest.raises(ValueError, match=message):
        hr.prune(
            decoder, hr.testing.case.Case(decoder).tokenizer, ["a b"], "top", keep=2, substitute={"L0H0": Offset(1)}
        )


def loss(model, pruned, patterns):
    """The loss with some heads masked and some attending by their patterns."""
    masked = hr.head_mask(model, [head for head in pruned if head not in patterns])
    with hr.mask_heads(model, masked), imposed(HeadModel(model, tokenizer()), patterns) if patterns else nullcontext():
        return hr.evaluate(model, tokenizer(), films(40, 1), ["loss"], n_resamples=0)["value"].item()


def test_a_comparison_hard_codes_the_pruned_heads_with_a_role(tmp_path):
    """Without retraining as masks and patterns of the whole model, with it as training after removal and patterns."""
    roles = {head: Offset(-1) for head in list(ALL)[1:6]}
    options = {"strategies": ["random"], "keep": [4], "seeds": 1, "tune": TUNE, "n_resamples": 0}
    given = [learnt(), tokenizer(), films(48), films(40, 1)]
    found = hr.compare_pruning(*given, **options, substitute=roles, study=tmp_path / "a").set_index(["heads", "tuned"])
    plain = hr.compare_pruning(*given, **options, study=tmp_path / "b").set_index(["heads", "tuned"])
    survival = hr.Study(tmp_path / "a").load("contest-heads").iloc[:, 0]
    pruned = [(*head,) for head in survival.index[survival == 0]]
    hard = {head: roles[head] for head in pruned if head in roles}
    assert 0 < len(hard) < len(pruned)
    assert found.loc[(4, False), "value"] == pytest.approx(loss(learnt(), pruned, hard), rel=1e-5)
    assert plain.loc[(4, False), "value"] == pytest.approx(loss(learnt(), pruned, {}), rel=1e-5)
    model = hr.remove_heads(deepcopy(learnt()), [head for head in pruned if head not in hard])
    with imposed(HeadModel(model, tokenizer()), hard):
        hr.train(model, tokenizer(), films(48), tmp_path / "tuned", **TUNE, seed=0)
    assert found.loc[(4, True), "value"] == pytest.approx(loss(model, [], hard), rel=1e-5)
    assert found.loc[(8, True), "value"] == plain.loc[(8, True), "value"]  # no head is pruned
    assert (found["value"] - plain["value"]).abs()[4].min() > 1e-4


def test_a_sweep_hard_codes_them_and_counts_them(tmp_path):
    roles, given = {head: Offset(-1) for head in list(ALL)[:5]}, [learnt(), tokenizer(), films(48), films(40, 1)]
    options = {"keep": [3], "tune": TUNE, "n_resamples": 0, "study": tmp_path / "a", "output": tmp_path / "models"}
    table = hr.sparsity_sweep(*given, "-top", **options, substitute=roles)
    model = deepcopy(learnt())
    survival = hr.prune(model, *given[1:3], "-top", keep=3, train="after", substitute=roles, tune=TUNE)
    hard = hr.pruning.hard_coding.marked(survival)
    assert table["hard_coded"].tolist()[1:] == [len(hard)]
    assert table["value"][1] == pytest.approx(loss(model, [], {head: roles[head] for head in hard}), rel=1e-5)
    saved, words = hr.load(tmp_path / "models/3")
    with hr.hard_code(saved, words, hr.Study(tmp_path / "a").load("survival--top"), roles):
        again = hr.evaluate(saved, words, films(40, 1), ["loss"], n_resamples=0)["value"].item()
    assert again == pytest.approx(table["value"][1], rel=1e-5)
    message = "hard-coded heads have the roles they are given: got scored and substitute; expected one of them"
    with pytest.raises(ValueError, match=whole(message)):
        hr.sparsity_sweep(*given, keep=[3], substitute=roles, scored=films(8))


@pytest.mark.parametrize("function", ["compare_pruning", "sparsity_sweep"])
def test_a_pattern_that_the_metric_cannot_measure_is_refused_before_training(monkeypatch, tmp_path, function):
    no_training(monkeypatch)
    text = hr.Corpus("pairs", tuple(replace(one, target=one, label=None) for one in films(8)))
    how = {"keep": [1], "metric": "bleu", "substitute": {("dec-self", 0, 0): Offset(-1)}, "study": tmp_path / "study"}
    with pytest.raises(ValueError, match=r"^pattern Offset\(offset=-1\) needs all tokens in one forward: "):
        getattr(hr, function)(translator(), tokenizer(), text, text, **how)
    assert not (tmp_path / "study").exists()


def test_the_command_takes_the_roles_of_the_study(folder, tmp_path):
    hr.Study(tmp_path / "study").save("roles", roles_of([("enc-self", 0, 0), ("enc-self", 0, 1)]))
    options = [
        "--strategy=-top",
        "--keep",
        5,
        "--substitute",
        "--study",
        tmp_path / "study",
        "--output",
        tmp_path / "x",
    ]
    done = run("prune", folder / "model", folder / "train.tsv", *options)
    assert (done.code, done.err) == (0, "")
    assert "3 of 8 heads are pruned" in done.out
    assert "hard-coded: enc-self layer 0, heads 0, 1\n2 of 8 heads are hard-coded" in done.out
    assert len(hr.models.head_index(hr.load(tmp_path / "x")[0])) == 7


def test_marks_of_an_earlier_pruning_leave_the_study_with_it(tmp_path):
    roles = {head: Offset(-1) for head in hr.models.head_index(learnt())}
    corpus = hr.Corpus("films", tuple(films(8)))
    marks = []
    for seed, given in ((0, roles), (1, False)):
        hr.prune(deepcopy(learnt()), tokenizer(), corpus, "random", keep=4, seed=seed, substitute=given, study=tmp_path)
        table = load_table(tmp_path / "survival-random.parquet")
        marks.append([column for column in table if column.endswith("hard_coded")])
    assert [len(names) for names in marks] == [1, 0]
