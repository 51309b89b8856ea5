"""Learnt gates follow their distribution, learn with the model, settle at open or closed, and leave no trace."""

from __future__ import annotations

import shutil
from contextlib import nullcontext

import pandas as pd
import pytest
import torch
import transformers
from helpers import zoo
from helpers.close import bound
from helpers.letters import DETERMINISTIC, tokens_of
from helpers.letters import corpus as letters
from helpers.messages import whole
from helpers.prunings import training_in
from helpers.traces import _traces
from helpers.trainings import DRY, Interrupt, contents, films, same_weights, tokenizer, translator, untrained
from hypothesis import given
from hypothesis import strategies as st

from headroles.models import heads as families
from headroles.models.dummy_inputs import dummy_inputs
from headroles.models.identity import weights_digest
from headroles.models.masking import head_mask, mask_heads
from headroles.pruning.learned_gates import L0, RATE, HardConcrete, frozen, train_gates
from headroles.pruning.selection import prune, undecided
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study
from headroles.training import trainer
from headroles.training.checkpoints import GATES
from headroles.training.trainer import train

ALPHAS = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0, 4.0], dtype=torch.float64)
STRATEGIES = {"a strength": (L0(0.1), None), "a target": (L0(), 3)}
HORIZON = "gates.horizon must be .*, got 0"
NO_LOSS = "the model must return a loss in training, got none"


# --- models, what they read, and the Trainer as it comes --------------------------------------------------------------


def classifier(seed=0):
    """Two layers of four heads, without dropout."""
    return untrained(seed, **DRY, num_hidden_layers=2)


def small(name):
    """A model without dropout, its tokenizer and a corpus it can learn."""
    if name == "classifier":
        return classifier(), tokenizer(), films(16)
    return translator(dropout=0.0), tokens_of("marian"), letters(12)


def gates_of(model, strategy, keep=None, kinds=frame.KINDS):
    return strategy.gates(model, [head for head in families.head_index(model) if head[0] in kinds], keep)


def rows_of(name):
    """A model without dropout, rows that the Trainer takes, and what makes batches of them."""
    words = torch.randint(zoo.FIRST_WORD, zoo.VOCABULARY, (10, 6), generator=torch.Generator().manual_seed(0))
    if name == "llama":
        rows = [{"input_ids": row, "labels": row} for row in words.tolist()]
        return zoo.tiny("llama"), rows, transformers.default_data_collator
    if name == "decoder classifier":
        config = zoo.tiny("llama").config
        config.num_labels, config.pad_token_id = 2, zoo.PAD
        rows = [{"input_ids": row, "labels": number % 2} for number, row in enumerate(words.tolist())]
        return transformers.LlamaForSequenceClassification(config).eval(), rows, transformers.default_data_collator
    model, tokens, text = small(name)
    rows = [{"input_ids": tokens(one.text)["input_ids"]} for one in text]
    if name == "classifier":
        labels = [model.config.label2id[one.label] for one in text]
        collator = transformers.DataCollatorWithPadding(tokens)
    else:
        labels = [tokens(one.target.text)["input_ids"] for one in text]
        collator = transformers.DataCollatorForSeq2Seq(tokens, model=model)
    return model, [row | {"labels": label} for row, label in zip(rows, labels, strict=True)], collator


def inputs_of(name):
    """A model, and a batch of four for it with labels."""
    model, rows, collator = rows_of(name)
    return model, dict(collator(rows[:4]))


def stock(model, rows, collator, folder, *, callback=None, resume=None, **options):
    """Train by transformers' own Trainer."""
    usual = {"per_device_train_batch_size": 4, "learning_rate": 1e-2, "save_strategy": "no", "max_steps": 8}
    usual |= {"logging_strategy": "no", "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False}
    args = transformers.TrainingArguments(output_dir=str(folder), **usual | options)
    given = {"train_dataset": rows, "data_collator": collator, "callbacks": [callback] if callback else None}
    transformers.Trainer(model=model, args=args, **given).train(resume_from_checkpoint=resume)


def state(model):
    """What a block has to leave as it was."""
    names = [name for name, _ in model.named_modules()]
    remembered, anew = families.attention_sites(model), families.attention_sites(model, dummy_inputs(model))
    sites = [[tuple(vars(site).values()) for site in found] for found in (remembered, anew)]
    return _traces(model), names, list(model.state_dict()), sites


def silence(model):
    """Heads write nothing, so that no gate is felt in what the model says."""
    for site in families.attention_sites(model):
        torch.nn.init.zeros_(site.out.weight)


def head_gradients(function, at, step=1e-5):
    """Central differences of a sum of independent values."""
    return (function(at + step) - function(at - step)) / (2 * step)


# --- the distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("temperature", "alpha", "shut", "open_"),
    [(0.5, 0, 0.232, 0.232), (0.5, 2, 0.039, 0.690), (0.5, -3, 0.858, 0.015), (0.33, 0, 0.312, 0.312)],
)
def test_a_gate_is_exactly_zero_and_exactly_one_as_often_as_derived(temperature, alpha, shut, open_):
    law, alpha = HardConcrete(temperature), torch.tensor(float(alpha))
    assert float(law.zero_probability(alpha)) == pytest.approx(shut, abs=6e-4)
    assert float(law.zero_probability(-alpha)) == pytest.approx(open_, abs=6e-4)


@pytest.mark.parametrize("temperature", [0.33, 0.5, 1.0])
def test_draws_are_as_often_open_and_whole_as_the_distribution_says(temperature):
    law, draws = HardConcrete(temperature), 200_000
    torch.manual_seed(0)
    drawn = law.sample(ALPHAS.float().expand(draws, -1))
    assert ((drawn >= 0) & (drawn <= 1)).all()
    for share, expected in [(drawn != 0, law.nonzero_probability(ALPHAS)), (drawn == 1, law.zero_probability(-ALPHAS))]:
        error = (expected * (1 - expected) / draws).sqrt()
        assert ((share.double().mean(0) - expected).abs() <= 4 * error).all()


@pytest.mark.parametrize("temperature", [0.33, 1.0])
def test_gradients_of_a_draw_are_those_of_finite_differences(temperature):
    law = HardConcrete(temperature)

    def drawn(alpha):
        torch.manual_seed(1)
        return law.sample(alpha)

    alpha = ALPHAS.repeat(200).requires_grad_()
    gates = drawn(alpha)
    gates.sum().backward()
    between = (gates > 0) & (gates < 1)
    assert {bool(one) for one in between} == {True, False}
    assert (alpha.grad[~between] == 0).all()
    assert (alpha.grad[between] > 0).all()
    expected = head_gradients(drawn, alpha.detach())
    torch.testing.assert_close(alpha.grad[between], expected[between], rtol=1e-5, atol=1e-8)


def test_gradients_of_the_penalty_are_those_of_finite_differences():
    gates = gates_of(classifier(), L0(0.3)).double()
    alpha = torch.linspace(-3, 4, 8, dtype=torch.float64)
    gates.log_alpha.data.copy_(alpha)
    penalty = gates.penalty()
    penalty.backward()
    assert float(penalty.detach()) == pytest.approx(0.3 * float(HardConcrete().nonzero_probability(alpha).sum()))
    expected = head_gradients(lambda at: 0.3 * HardConcrete().nonzero_probability(at), alpha)
    torch.testing.assert_close(gates.log_alpha.grad, expected, rtol=1e-6, atol=1e-10)


# --- final ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@DETERMINISTIC
@given(st.sampled_from(sorted(STRATEGIES)), st.lists(st.integers(-4, 4), min_size=8, max_size=8), st.integers(0, 8))
def test_final_gates_are_zero_or_one_and_with_a_number_to_keep_so_many_are_one(which, alpha, keep):
    strategy, target = STRATEGIES[which]
    gates = gates_of(classifier(), strategy, None if target is None else keep)
    gates.log_alpha.data.copy_(torch.tensor(alpha))
    found = gates.final()
    assert set(found.tolist()) <= {0.0, 1.0}
    if target is None:
        assert found.tolist() == [float(one > 0) for one in alpha]
    else:
        assert found.sum() == keep
        assert min([a for a, g in zip(alpha, found, strict=True) if g], default=9) >= max(
            [a for a, g in zip(alpha, found, strict=True) if not g], default=-9
        )


@pytest.mark.parametrize("which", STRATEGIES)
def test_outside_training_gates_of_removed_heads_are_zero_and_those_not_learnt_are_one(which):
    model, inputs = inputs_of("translator")
    strategy, keep = STRATEGIES[which]
    gates = gates_of(model, strategy, keep, ["enc-self", "cross"])
    gates.horizon = 4
    gates.log_alpha.data.copy_(torch.tensor([3.0, -2, 1, -1, -3, 2, -4, -5]))
    shut = [("enc-self", 0, 1), ("enc-self", 0, 3), ("cross", 0, 0), ("cross", 0, 2), ("cross", 0, 3)]
    with torch.no_grad():
        with train_gates(model, gates):
            model.train()
            model(**inputs)
            model.eval()
            drawn = torch.get_rng_state()
            found = model(**inputs)
            assert torch.equal(torch.get_rng_state(), drawn)
            assert float(gates.step) == 1  # that of training
            assert gates.now().tolist() == head_mask(model, shut).tolist()
        with mask_heads(model, head_mask(model, shut)):
            expected = model(**inputs)
        assert torch.equal(found.logits, expected.logits)
        assert found.loss == expected.loss
        assert not torch.allclose(found.logits, model(**inputs).logits, atol=1e-4)


# --- a step of training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classifier", "translator", "llama"])
def test_the_loss_is_cross_entropy_under_the_drawn_gates_and_the_penalty(name):
    model, inputs = inputs_of(name)
    gates = gates_of(model, L0(0.3, start=0.5))
    torch.manual_seed(3)
    with train_gates(model, gates), torch.no_grad():
        model.train()
        found = model(**inputs)
        drawn = gates.now()
        before = model(**inputs).loss
    assert 0 < (drawn == 0).sum() < len(drawn)
    labels = inputs["labels"]
    with mask_heads(model, drawn), torch.no_grad():
        logits = model(**inputs).logits
    if name == "llama":  # predicts the token that comes next
        logits, labels = logits[:, :-1], labels[:, 1:]
    entropy = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    penalty = 0.3 * len(drawn) * HardConcrete().nonzero_probability(torch.tensor(0.5))
    torch.testing.assert_close(found.loss, entropy + penalty, rtol=bound(1), atol=0)
    assert found.loss != before  # gates are drawn at each forward


@pytest.mark.parametrize(
    ("name", "parts"),
    [("classifier", 1), ("translator", 3), ("llama", 3), ("decoder classifier", 1), ("decoder classifier", 3)],
)
def test_penalties_of_the_parts_of_a_step_sum_to_one_penalty(name, parts, tmp_path):
    """Where no gate is felt a step of plain gradient descent moves gates by the gradient of one penalty."""
    model, rows, collator = rows_of(name)
    silence(model)
    gates = gates_of(model, L0(0.3, start=1.0))
    options = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    with train_gates(model, gates):  # ten rows in parts of four: the last is a smaller one
        stock(model, rows[:10], collator, tmp_path, max_steps=1, gradient_accumulation_steps=parts, **options)
    shut = HardConcrete().zero_probability(torch.tensor(1.0))
    expected = (1.0 - 0.3 * shut * (1 - shut)).expand(len(gates.log_alpha))
    torch.testing.assert_close(gates.log_alpha.detach(), expected, rtol=0, atol=bound(expected))
    assert float(gates.step) == parts


def test_a_forward_of_training_without_a_loss_is_refused(tmp_path):
    model, rows, collator = rows_of("classifier")
    inputs = dict(collator(rows[:4]))
    labels = inputs.pop("labels")
    with train_gates(model, gates_of(model, L0(0.1))):
        assert model(**inputs).loss is None  # in eval mode
        with pytest.raises(ValueError, match=NO_LOSS):
            model.train()(**inputs)
        assert model(**inputs, labels=labels).loss is not None
        with pytest.raises(ValueError, match=NO_LOSS):
            stock(model, rows, collator, tmp_path, label_smoothing_factor=0.1)


def test_gates_with_a_number_to_keep_have_to_know_how_long_training_is():
    model, inputs = inputs_of("classifier")
    for strategy, keep in STRATEGIES.values():
        gates = gates_of(model, strategy, keep)
        with pytest.raises(ValueError, match=HORIZON):
            gates.progress()
        error = nullcontext() if keep is None else pytest.raises(ValueError, match=HORIZON)
        with train_gates(model, gates), error:
            model.train()(**inputs)


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "steps"), [(5, 16), (2, 48), (5, 400)])
def test_without_a_rate_gates_decide_at_the_target_in_trainings_of_any_length(keep, steps):
    """Where the loss pulls gates open, some more than others, with noise of the same size, and a linear schedule."""
    gates = gates_of(classifier(), L0(), keep)
    gates.horizon = steps
    optimizer = torch.optim.Adam(gates.parameters(), lr=RATE(steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    pull = torch.linspace(0.005, 0.02, 8)
    torch.manual_seed(0)
    for _ in range(steps):
        gates.draw()
        optimizer.zero_grad()
        (gates.penalty() - (pull * (1 + torch.randn(8)) * gates.drawn).sum()).backward()
        optimizer.step()
        schedule.step()
    nonzero_probability = gates.eval().chances().detach()
    assert undecided(pd.Series(nonzero_probability.tolist())) == 0
    assert float(nonzero_probability.sum()) == pytest.approx(keep, abs=0.4)
    assert torch.equal(gates.final(), (nonzero_probability > 0.5).float())


def test_with_a_rate_chances_are_those_of_log_alpha():
    """As they were when the tables in figures/ were made."""
    gates = gates_of(classifier(), L0(rate=0.1), 3)
    gates.horizon, gates.step[()] = 10, 9
    gates.log_alpha.data.copy_(torch.arange(8.0) - 4)
    assert torch.equal(gates.chances(), HardConcrete().nonzero_probability(gates.log_alpha))
    assert str(L0(rate=0.1)) == "L0(strength=None, temperature=0.33, start=2.0, rate=0.1, freeze='nothing')"


def test_gates_that_are_undecided_are_said_with_numbers(caplog):
    """A gate is decided where it is one or zero with a probability of nine tenths."""
    assert undecided(pd.Series([0.0, 0.09, 0.11, 0.5, 0.89, 0.91, 1.0])) == 3
    _, table = pruned(L0(0.1, rate=1.0), tune=SHORT)
    open_ = undecided(table.iloc[:, 1])
    assert open_ > 1
    message = f"{open_} of 8 gates are undecided after 4 steps (P(gate != 0) between 0.1 and 0.9)"
    assert caplog.messages[0].partition(", so the choice")[0] == message


# --- with the stock Trainer -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "which"), [("translator", "a strength"), ("classifier", "a target")])
def test_gates_learn_with_the_stock_trainer_and_leave_no_trace(name, which, tmp_path):
    model, rows, collator = rows_of(name)
    before, weights = state(model), {key: value.clone() for key, value in model.state_dict().items()}
    gates = gates_of(model, *STRATEGIES[which])
    gates.horizon, start = 8, gates.log_alpha.detach().clone()
    with train_gates(model, gates):
        assert dict(model.named_modules())[GATES] is gates
        own = {key.removeprefix(f"{GATES}.") for key in model.state_dict() if key.startswith(GATES)}
        assert own == {"log_alpha", "step", "pressure"}
        stock(model, rows, collator, tmp_path)
    assert (gates.log_alpha != start).all()
    assert float(gates.step) == 8
    assert any(not torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert state(model.eval()) == before


def test_other_models_are_not_touched_and_gates_of_another_are_refused():
    model, inputs = inputs_of("classifier")
    message = (
        "gates must have shape [8] or [batch, 8] for BertForSequenceClassification, which has "
        "enc-self 2 layers of 4 heads, got [4]"
    )
    before = state(model)
    with pytest.raises(ValueError, match=whole(message)), train_gates(model, gates_of(untrained(), L0(0.1))):
        pass
    assert state(model) == before
    other = classifier(1)
    before, plain = state(other), other(**inputs)
    with train_gates(model, gates_of(model, L0(0.1, start=-9.0))):
        model.train()(**inputs)
        found = other(**inputs)
        assert torch.equal(found.logits, plain.logits)
        assert found.loss == plain.loss == other.train()(**inputs).loss
        assert state(other.eval()) == before


@pytest.mark.slow
def test_interrupted_training_resumes_with_the_same_result(tmp_path):
    def ran(folder, **options):
        model = untrained(num_hidden_layers=2)  # with dropout
        gates = gates_of(model, *STRATEGIES["a target"])
        gates.horizon = 8
        with train_gates(model, gates):
            stock(model, *rows_of("classifier")[1:], folder, save_strategy="steps", save_steps=4, **options)
        return model, gates

    expected, their = ran(tmp_path / "whole")
    with pytest.raises(KeyError, match="^'stopped'$"):
        ran(tmp_path / "stopped", callback=Interrupt(6))
    assert [path.name for path in (tmp_path / "stopped").glob("checkpoint-*")] == ["checkpoint-4"]
    model, gates = ran(tmp_path / "stopped", resume=str(tmp_path / "stopped" / "checkpoint-4"))
    same_weights(model, expected)
    same_weights(gates, their)
    assert float(gates.step) == 8
    assert gates.pressure > 0


# --- pruning ----------------------------------------------------------------------------------------------------------

SHORT = {"epochs": 2, "batch": 8, "rate": 1e-3}  # of the classifier's corpus: two steps each


def pruned(strategy, study=None, *, name="classifier", tune=SHORT, **options):
    """The model and the table."""
    model, tokens, text = small(name)
    return model, prune(model, tokens, text, strategy, study=study, tune=tune, remove=False, **options)


def test_a_pruning_that_is_killed_as_training_ends_keeps_the_gates(tmp_path, monkeypatch):
    """Training counts as finished from its history on: that of the gates must be there before."""
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "save_table", lambda *given: (save_table(*given), {}["killed"]))
        with pytest.raises(KeyError, match="killed"):
            pruned(L0(rate=0.3), tmp_path, keep=4)
    pruned(L0(rate=0.3), tmp_path, keep=4)
    assert Study(tmp_path).load("gates-l0-4")["step"].nunique() == 5  # before the first step, and after each of 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "keep", "label", "count"),
    [("l0", 3, "l0 3", 3), (L0(), 0.25, "l0 2", 2), (L0(), None, "l0 4", 4), (L0(0.1), None, "0.1", 0),
     (L0(0.0, start=5.0), None, "0", 8)],
)  # fmt: skip
def test_as_many_heads_survive_as_are_to_be_kept(strategy, keep, label, count):
    model, table = pruned(strategy, keep=keep)
    column = f"survival[{label}]"
    assert list(table) == [column, f"{column}.open"]
    assert set(table[column]) <= {0.0, 1.0}
    assert table[column].sum() == count
    assert table[f"{column}.open"].between(0, 1).all()
    assert f"strategy:{ {'l0': L0()}.get(strategy, strategy) }" in (frame.provenance(table, column).split("|"))
    assert not model.training
    assert not hasattr(model, GATES)


def test_heads_of_other_kinds_stay_and_the_history_is_of_those_that_may_go(tmp_path):
    _, table = pruned("l0", tmp_path, name="translator", keep=3, kinds=["enc-self", "cross"])
    column = "survival[l0 3 enc-self cross]"
    learnt = table.index[table.index.get_level_values("kind") != "dec-self"]
    assert (table.loc["dec-self"] == 1).all(axis=None)
    assert table.loc[learnt, column].sum() == 3
    history = load_table(tmp_path / "gates-l0-enc-self-cross-3.parquet")
    assert list(history) == [*frame.LEVELS, "step", "open"]
    steps = [0, 1, 2, 3, 4]  # two epochs of two batches
    assert history["step"].tolist() == [step for step in steps for _ in learnt]
    assert list(history[frame.LEVELS].itertuples(index=False, name=None)) == list(learnt) * len(steps)
    start = float(HardConcrete().nonzero_probability(torch.tensor(2.0)))
    assert history.loc[history["step"] == 0, "open"].tolist() == pytest.approx([start] * len(learnt), abs=1e-6)
    assert history.loc[history["step"] == 4, "open"].tolist() == table.loc[learnt, f"{column}.open"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "length", "forwards"),
    [(1, {"epochs": 2}, 8), (3, {"epochs": 2}, 8), (3, {"max_steps": 4}, 8), (3, {"max_steps": 3}, 7),
     (8, {"max_steps": 2}, 8)]
)  # fmt: skip
def test_what_is_scheduled_is_done_when_training_is(parts, length, forwards):
    """Four forwards in each epoch: of three parts the second step has but one."""
    made = []

    class Seen(L0):
        def gates(self, *asked):
            made.append(super().gates(*asked))
            return made[-1]

    pruned(Seen(), keep=3, tune=SHORT | {"batch": 4, "gradient_accumulation_steps": parts} | length)
    assert float(made[0].step) == made[0].horizon == forwards
    assert made[0].progress() == 1


@pytest.mark.slow
@pytest.mark.parametrize("which", STRATEGIES)
def test_pruning_is_not_done_again_and_resumes_with_the_same_result(which, tmp_path):
    folder, (strategy, keep) = tmp_path / "finished", STRATEGIES[which]
    model, table = pruned(strategy, folder, keep=keep)
    before, whole = contents(folder), training_in(folder)
    again, found = pruned(strategy, folder, keep=keep)
    assert contents(folder) == before
    same_weights(again, model)
    pd.testing.assert_frame_equal(found, table, check_exact=True)
    assert found.attrs == table.attrs
    stopped = tmp_path / ".pruning" / whole.name
    shutil.copytree(whole / "checkpoint-2", stopped / "checkpoint-2")
    shutil.copy(whole / "recipe.txt", stopped)
    again, found = pruned(strategy, tmp_path, keep=keep)
    same_weights(again, model)
    pd.testing.assert_frame_equal(found, table, check_exact=True)
    one, other = (load_table(place / "gates.parquet") for place in (stopped, whole))
    pd.testing.assert_frame_equal(one, other, check_exact=True)


@pytest.mark.parametrize("which", STRATEGIES)
def test_a_study_keeps_which_heads_a_training_of_your_own_leaves(which, tmp_path):
    strategy, keep = STRATEGIES[which]
    model, rows, collator = rows_of("classifier")
    gates, before = gates_of(model, strategy, keep), weights_digest(model)
    gates.horizon = 8
    with train_gates(model, gates, study=tmp_path / "study"):
        stock(model, rows, collator, tmp_path / "trained")
    table = Study(tmp_path / "study").load(f"survival-{strategy.name}")
    assert list(table) == [f"survival[{strategy.name}]", f"survival[{strategy.name}].open"]
    assert table.iloc[:, 0].tolist() == gates.eval().final().tolist()
    assert table.iloc[:, 1].tolist() == gates.chances().tolist()
    assert f"weights:{before}|" in frame.provenance(table, f"survival[{strategy.name}]")
    refused = pytest.raises(FileExistsError, match="holds another model")
    with refused, train_gates(model, gates_of(model, strategy, keep), study=tmp_path / "study"):
        pytest.fail("began")


# --- what is frozen ---------------------------------------------------------------------------------------------------


def trainable(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", ["marian", "bart", "t5", "bert2bert", "bert2gpt2", "whisper"])
def test_of_a_frozen_decoder_the_encoders_own_parameters_train_and_gates(name):
    model = zoo.tiny(name)
    before = trainable(model)
    encoder = {each for each in before if each.startswith(("encoder.", "model.encoder."))}
    with train_gates(model, gates_of(model, L0(0.1))):
        for what, free in [("decoder", encoder), ("all", set()), ("nothing", before)]:
            with frozen(model, what):
                assert trainable(model) == free | {f"{GATES}.log_alpha"}
        with pytest.raises(KeyError, match="^'on purpose'$"), frozen(model, "all"):
            raise KeyError("on purpose")
        assert trainable(model) == before | {f"{GATES}.log_alpha"}
    assert trainable(model) == before


@pytest.mark.slow
@pytest.mark.parametrize("freeze", ["nothing", "decoder", "all"])
def test_what_is_frozen_stays_and_the_rest_moves(freeze):
    model, table = pruned(L0(0.1, freeze=freeze), name="translator")
    before = dict(translator(dropout=0.0).named_parameters())
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    weights = {name for name, value in before.items() if value.ndim == 2 and value.requires_grad}
    encoder = {name for name in before if name.startswith("model.encoder.")}
    if freeze == "nothing":
        assert weights <= moved
    elif freeze == "decoder":
        assert weights & encoder <= moved <= encoder
    else:
        assert moved == set()
    assert trainable(model) == trainable(translator())
    assert (table.iloc[:, 1] != float(HardConcrete().nonzero_probability(torch.tensor(2.0)))).all()


# --- rates of their own -----------------------------------------------------------------------------------------------


class Groups(transformers.TrainerCallback):
    """Sees the optimizer's groups: their rate at first, and the names of what is in them."""

    def on_train_begin(self, args, state, control, *, model, optimizer, **_):  # noqa: ARG002
        names = {parameter: name for name, parameter in model.named_parameters()}
        self.groups = [(group["lr"], {names[one] for one in group["params"]}) for group in optimizer.param_groups]


def test_parameters_have_rates_of_their_own_and_others_the_usual_one(tmp_path):
    model, tokens, text = small("classifier")
    model.classifier.weight.requires_grad = False
    rates, seen = {"classifier": 0.5, "bert.encoder.layer.1": 0.25}, Groups()
    train(model, tokens, text, tmp_path, epochs=1, rate=1e-3, rates=rates, callbacks=[seen])
    found = {name: rate for rate, names in seen.groups for name in names}
    assert sum(len(names) for _, names in seen.groups) == len(found)
    assert found == {
        name: next((rate for start, rate in rates.items() if name.startswith(start)), 1e-3)
        for name, _ in model.named_parameters()
        if name != "classifier.weight"  # stays frozen
    }
    assert torch.equal(model.classifier.weight, classifier().classifier.weight)
    assert not torch.equal(model.classifier.bias, classifier().classifier.bias)
    assert not model.classifier.weight.requires_grad
    message = f"{tmp_path} holds training of another model, corpus or options; give another folder, or remove it"
    other = classifier()
    other.classifier.weight.requires_grad = False
    with pytest.raises(ValueError, match=whole(message)):
        train(other, tokens, text, tmp_path, epochs=1, rate=1e-3, rates=rates | {"classifier": 0.4})
