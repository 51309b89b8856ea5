"""Role tests: heads planted to do what their role says, something else, or nothing; costs of a slow loop."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from helpers import zoo
from helpers.letters import corpus as letters
from helpers.letters import tokens_of
from helpers.skewness import p_of_mean

import headroles as hr
from headroles import _distributed
from headroles.ablation import role_tests
from headroles.analysis.role_rules import VERDICTS
from headroles.data.corpus import Corpus
from headroles.patterns import Duplicate, First, Offset, Previous, Shift, Shuffle, Streaming
from headroles.tables.frame import fields
from headroles.testing.case import Case

EXACT, SILENT, ELSEWHERE = ("dec-self", 0, 0), ("dec-self", 0, 1), ("dec-self", 0, 2)


@pytest.fixture(scope="module")
def case():
    """A GPT-2 whose first layer attends by position alone: two heads to the token before, one to the first token.

    The output of the second head is multiplied by 0.
    """
    model = hr.tiny_model("gpt2", n_positions=64)
    block, width = model.transformer.h[0].attn, model.config.n_embd
    size = width // model.config.n_head
    with torch.no_grad():
        positions = torch.nn.functional.one_hot(torch.arange(64) % (size - 1), width).float() * 8
        model.transformer.wte.weight[:, : size - 1] = 0  # the first features are the position's alone
        model.transformer.wpe.weight.copy_(positions)
        weight = block.c_attn.weight  # [width, 3 x width]
        weight[:, : 2 * width] = 0
        block.c_attn.bias[: 2 * width] = 0
        eye = torch.eye(size - 1)
        for head, turn in ((0, -1), (1, -1)):
            weight[: size - 1, head * size : head * size + size - 1] = eye.roll(turn, 1) * 100
            weight[: size - 1, width + head * size : width + head * size + size - 1] = eye
        block.c_attn.bias[2 * size + size - 1] = 100.0  # every query of the third head
        weight[0, width + 2 * size + size - 1] = 1.0  # the key of position 0
        block.c_proj.weight[size : 2 * size] = 0
    return Case(model)


def texts(case, count=40, length=12):
    known = [sentence.text.split() for sentence in case.corpus]
    words = sorted({word for row in known for word in row})
    rng = np.random.default_rng(0)
    return Corpus.of([" ".join(rng.choice(words, length)) for _ in range(count)])


ROLES = {EXACT: Previous(), SILENT: Previous(), ELSEWHERE: Previous()}


def measured(case, roles, given=None, **options):
    return hr.test_roles(case.model, case.tokenizer, given or texts(case), roles, **{"n_resamples": 10} | options)


@pytest.fixture(scope="module")
def table(case):
    return measured(case, ROLES, n_resamples=200)


@pytest.fixture(scope="module")
def agreement(case):
    """The same by what the intact model says: a model of random weights may be better without a head."""
    return measured(case, ROLES, metric="agreement", n_resamples=200)


def test_a_head_that_is_its_role_is_explained_and_one_that_attends_elsewhere_or_writes_nothing_is_not(agreement):
    exact, silent, elsewhere = (agreement.loc[(f"dec-self:0:{head}", "previous")] for head in range(3))
    assert exact["removed"] > 0
    assert exact["explained"] == pytest.approx(1, abs=1e-3)
    assert abs(silent["removed"]) < 1e-6
    assert np.isnan(silent["explained"])
    assert elsewhere["role_pattern"] > 0
    assert not elsewhere["explained"] > 0.5
    assert [row["verdict"] for row in (exact, silent, elsewhere)] == [VERDICTS[0], VERDICTS[3], VERDICTS[2]]


def test_a_pattern_applies_to_the_tokens_that_have_what_it_is_about(case, agreement):
    words = [len(sentence.text.split()) for sentence in texts(case)]
    np.testing.assert_allclose(agreement["applies"], 1 - len(words) / sum(words))  # all but the first of a text


def test_a_pattern_applies_to_nothing_beyond_the_window():
    """Windows of four tokens: plain counts of the tokens of which an equal one is among the last three."""
    model, tokenizer, given = zoo.tiny("mistral"), tokens_of("mistral"), letters(12)
    rows = [tokenizer(sentence.text)["input_ids"] for sentence in given]
    special = {*tokenizer.all_special_ids}
    content = sum(token not in special for row in rows for token in row)

    def count(window):
        before = [[(token, row[max(0, place - window + 1) : place]) for place, token in enumerate(row)] for row in rows]
        return [sum(token not in special and token in earlier for token, earlier in row) for row in before]

    assert model.config.sliding_window == 4
    assert sum(count(4)) < sum(count(100))
    table = hr.test_roles(model, tokenizer, given, {("dec-self", 1, 0): Duplicate()}, n_resamples=10)
    assert table["tokens"].tolist() == [sum(count(4))]
    assert table["applies"].tolist() == pytest.approx([sum(count(4)) / content])
    assert table["texts"].tolist() == [sum(each > 0 for each in count(4))]


SURE, UNSURE = {"p.removed_local.holm": 0.01}, {"p.removed_local.holm": 0.2}
DOUBTFUL = {"p.removed": 0.018, "p.removed.holm": 0.147}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        *(({"applies": share}, VERDICTS[share < 0.5]) for share in (1.0, 0.5, 0.49)),
        ({"applies": 0.05, **UNSURE}, VERDICTS[4]),  # removal of the head at these tokens may cost as little
        ({"applies": 0.05, **SURE, "removed_local": -1.0}, VERDICTS[2]),  # costs less than the pattern
        (DOUBTFUL, VERDICTS[4]),
        (DOUBTFUL | {"removed": 0.0}, VERDICTS[3]),  # too little, however sure
        ({"p.removed": 0.06, "p.removed.holm": 0.2}, VERDICTS[3]),
        *(({name: float("nan")}, VERDICTS[4]) for name in ("applies", "texts", "p.removed")),
    ],
)
def test_verdict_of_an_explained_head_with_other_numbers(agreement, changes, verdict):
    row = agreement.loc[("dec-self:0:0", "previous")]
    assert role_tests._verdict(pd.Series({**row, **changes})) == verdict


def test_no_head_of_an_untrained_model_is_what_a_role_says(case):
    """Its attention is next to uniform: removing a head costs its mean output, which nearly any attention saves."""
    config = transformers.BertConfig(
        vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertModel(config).eval()
    roles = {("enc-self", layer, head): [Previous(), Offset(1)] for layer in (0, 1) for head in range(4)}
    table = hr.test_roles(model, case.tokenizer, texts(case), roles, metric="agreement", n_resamples=200)
    assert set(table["verdict"]).isdisjoint(VERDICTS[:2])
    little = table["removed"] < 1e-4  # of the agreement with itself, 1
    assert (table["p.removed.holm"][little] < 0.01).any()  # it is sure, and does not matter
    assert set(table["verdict"][little]) == {VERDICTS[3]}
    assert table["explained"][little].isna().all()
    assert not little.all()
    # a share of the cost of removal alone would have called it their role
    assert (table["explained"][~little] > 0.5).all()
    assert (table["uniform"] < table["role_pattern"]).all()


def test_texts_in_which_a_pattern_applies_are_counted(case):
    """A rare role has next to no place in most texts: what 9 of them show is of chance, and 10 are the least."""
    seen = {}
    for rare in (9, 10):
        distinct = sorted({word for text in texts(case) for word in text.text.split()})[:12]
        rows = [[*distinct[:11], distinct[0 if number < rare else 11]] for number in range(40)]
        corpus = Corpus.of([" ".join(row) for row in rows])
        patterns = {EXACT: Duplicate(), SILENT: Previous()}
        seen[rare] = measured(case, patterns, corpus, metric="agreement", n_resamples=50)
        assert seen[rare]["texts"].tolist() == [rare, 40, 40]
        assert seen[rare]["tokens"].tolist() == [rare, 40 * 11, (rare + 40 * 11) / 2]
        assert seen[rare]["applies"].iloc[0] == rare / (40 * 12)
    few, enough = (seen[rare].loc[("dec-self:0:0", "duplicate"), "verdict"] for rare in (9, 10))
    assert few == "too few places" != enough


class InLayer(Previous):
    """A pattern that asks in which layer it is imposed."""

    def targets(self, observation):
        return [super().targets(observation)][observation.layer]  # of EXACT, layer 0


def test_patterns_that_differ_by_layer_are_tested(case):
    """The tokens to which they apply were looked for in no layer, which ended in a KeyError."""
    table = measured(case, {EXACT: InLayer()}, texts(case, 12))
    assert table["applies"].iloc[0] > 0.5


def test_a_pattern_of_own_weights_applies_where_it_changes_them(case):
    """With a window as long as the text it restricts nothing, costs nothing, and says nothing of the head."""
    corpus = texts(case)
    sizes = np.array([len(text.text.split()) for text in corpus])
    table = measured(case, {EXACT: [Streaming(1, 2), Streaming(1, sizes.max())]}, corpus, n_resamples=200)
    some, nothing = table.loc["dec-self:0:0"].itertuples()
    assert (some.tokens, some.texts) == ((sizes - 3).clip(0).sum(), (sizes > 3).sum())  # from the fourth token on
    assert some.applies == pytest.approx(some.tokens / sizes.sum())
    assert (nothing.applies, nothing.tokens, nothing.texts, nothing.verdict) == (0, 0, 0, "too few places")
    assert abs(nothing.role_pattern) < 1e-6


@torch.no_grad()
def loop(model, corpus, heads, weights, first=0):
    """The loss of each text with heads that attend by `weights` (None: removed from a token on), a text at a time."""
    block, read = model.transformer.h[0].attn, {}
    size = block.head_dim

    def replaced(_, args):
        states = args[0].clone()
        for head in heads:
            part = slice(head[2] * size, (head[2] + 1) * size)
            if weights is None:
                states[:, first:, part] = 0
            else:
                own = weights(states.shape[1])  # [query, key], rows of 0 keep the head's own
                value = block.c_attn(read["states"])[..., 2 * block.embed_dim :][..., part]
                states[..., part] = torch.where(own.sum(-1, keepdim=True) > 0, own @ value, states[..., part])
        return (states,)

    hooks = [
        block.register_forward_pre_hook(lambda _, args: read.update(states=args[0])),
        block.c_proj.register_forward_pre_hook(replaced),
    ]
    rows = [torch.tensor([[int(word) for word in sentence.text.split()]]) for sentence in corpus]
    losses = [float(model(ids, labels=ids).loss) for ids in rows]
    [hook.remove() for hook in hooks]
    return np.array(losses)


def test_costs_are_those_of_a_slow_loop(case, table):
    corpus = texts(case)
    intact = loop(case.model, corpus, [], None).mean()
    one_earlier = lambda size: torch.diag(torch.ones(size - 1), -1)  # noqa: E731
    for head in (EXACT, ELSEWHERE):
        row = table.loc[(":".join(map(str, head)), "previous")]
        removed = loop(case.model, corpus, [head], None).mean() - intact
        own = loop(case.model, corpus, [head], one_earlier).mean() - intact
        assert row["removed"] == pytest.approx(removed, abs=1e-5)
        assert row["role_pattern"] == pytest.approx(own, abs=1e-5)
        there = loop(case.model, corpus, [head], None, first=1).mean() - intact  # the first token has none before it
        assert abs(there - removed) > 1e-4
        assert row["removed_local"] == pytest.approx(there, abs=1e-5)
    together = loop(case.model, corpus, [EXACT, SILENT, ELSEWHERE], one_earlier).mean() - intact
    assert table.loc[("all 3", "previous"), "role_pattern"] == pytest.approx(together, abs=1e-5)
    assert dict(fields(hr.provenance(table, "role_pattern")))["patterns"] == "Previous()"


@torch.no_grad()
def test_a_role_must_cost_less_than_each_wrong_pattern_and_not_than_their_mean(case, table):
    controls = {"earlier": Shift(Previous(), -1), "later": Shift(Previous(), 1), "random": Shuffle(Previous(), 0)}
    row, mask = table.loc[("dec-self:0:0", "previous")], hr.head_mask(case.model, [EXACT])
    rows = [torch.tensor([[int(word) for word in sentence.text.split()]]) for sentence in texts(case)]
    losses = {}
    for name, pattern in {"role": Previous(), **controls}.items():
        with hr.mask_heads(case.model, mask, replacement=pattern):
            losses[name] = np.array([float(case.model(ids, labels=ids, use_cache=False).loss) for ids in rows])
    intact = loop(case.model, texts(case), [], None).mean()
    costs = {f"wrong[{name}]": losses[name].mean() - intact for name in controls}
    assert row[[*costs]].to_dict() == pytest.approx(costs, abs=1e-5)
    assert row["wrong"] == row[[*costs]].min()
    ends = [f"{row[[*costs]].astype(float).idxmin()}.{end}" for end in ("low", "high")]
    assert row[["wrong.low", "wrong.high"]].tolist() == row[ends].tolist()
    p = [p_of_mean(losses[name] - losses["role"]) for name in controls]
    assert row["p.wrong"] == pytest.approx(max(p), rel=1e-3)
    assert max(p) > 10 * min(p)


def test_a_placebo_is_the_same_change_of_other_heads_of_the_layer(case):
    corpus, one_earlier = texts(case), lambda size: torch.diag(torch.ones(size - 1), -1)
    intact, others = loop(case.model, corpus, [], None).mean(), [("dec-self", 0, head) for head in (1, 2, 3)]
    assert case.model.config.n_head == 4
    for name, weights in (("placebo_removed", None), ("placebo_pattern", one_earlier)):
        losses = [loop(case.model, corpus, [head], weights).mean() for head in others]
        for metric, of in (("loss", np.array), ("perplexity", np.exp)):
            row = measured(case, {"dec-self:0:0": Previous()}, metric=metric, n_resamples=50).iloc[0]
            assert row[name] == pytest.approx(np.mean(of(losses)) - of(intact), rel=1e-4, abs=1e-5)
            assert row[f"{name}.low"] < row[name] < row[f"{name}.high"]
    both = measured(case, {"L0H0": [Previous(), First()], SILENT: Previous()}, corpus[:6]).xs("previous", level="role")
    few = loop(case.model, corpus[:6], [], None).mean()
    pairs = [[others[1]], [others[2]]]  # heads without the role, beside a set of two both of them
    alone = np.mean([loop(case.model, corpus[:6], pair, one_earlier).mean() - few for pair in pairs])
    together = loop(case.model, corpus[:6], others[1:], one_earlier).mean() - few
    assert both["placebo_pattern"].tolist() == pytest.approx([alone, alone, together], abs=1e-5)


def test_heads_of_layers_in_which_all_have_the_role_have_no_placebo(case):
    table = measured(case, {("dec-self", 1, head): Previous() for head in range(4)}, texts(case)[:6])
    assert table[["placebo_removed", "placebo_pattern.high"]].isna().all(axis=None)


def test_the_verdict_of_a_set_says_how_many_of_its_members_pass(case, agreement):
    assert agreement.loc[("all 3", "previous"), "verdict"].endswith("; 1 of 3 members pass")
    table = measured(case, ROLES, metric="agreement", heads=[SILENT], n_resamples=50)
    assert table["verdict"].tolist()[0] == VERDICTS[3]
    assert table["verdict"].tolist()[1].endswith("; 0 of 1 tested members pass")
    assert not measured(case, ROLES, texts(case, 8), heads=())["verdict"].str.contains("pass").any()


def test_roles_of_a_table_and_a_study(case, tmp_path, monkeypatch):
    scores = hr.score(case.model, case.tokenizer, texts(case, 20), ["position", "sink"], n_resamples=10)
    assert scores.loc[[EXACT, SILENT], "position[-1]"].tolist() == [1.0, 1.0]
    roles = hr.roles(scores)
    stored = measured(case, roles, study=tmp_path)
    assert ("dec-self:0:2", "sink[first]") in stored.index
    assert ("dec-self:0:0", "positional[-1]") in stored.index
    with monkeypatch.context() as patched:
        patched.setattr("headroles.ablation.sweep.Sweep.run", lambda *_, **__: pytest.fail("computed again"))
        again = measured(case, roles, study=tmp_path)
    pd.testing.assert_frame_equal(again, stored)


def test_finished_batches_are_kept_until_the_test_is_done(case, tmp_path, monkeypatch):
    """Hundreds of files for a table of two heads were left behind."""
    with monkeypatch.context() as patched:
        patched.setattr(role_tests, "bounds", lambda _: pytest.fail("interrupted"))  # after the last sweep
        with pytest.raises(pytest.fail.Exception):
            measured(case, ROLES, texts(case, 8), study=tmp_path)
    assert len([*(tmp_path / ".sweeps").rglob("*.npy")]) > 5
    with monkeypatch.context() as patched:
        patched.setattr("headroles.ablation.sweep.Sweep._measure", lambda *_: pytest.fail("measured again"))
        table = measured(case, ROLES, texts(case, 8), study=tmp_path)
    pd.testing.assert_frame_equal(table, measured(case, ROLES, texts(case, 8)))
    assert [path.name for path in tmp_path.rglob("*.*") if path.is_file()] == [".lock", "role-tests-loss.parquet"]


def test_it_says_its_stages_and_after_the_first_batch_of_each_the_time_that_is_left(case, monkeypatch, caplog):
    monkeypatch.setattr(_distributed, "monotonic", map((600.0).__mul__, range(1000)).__next__)  # ten minutes a batch
    with caplog.at_level("INFO", "headroles._distributed"):
        measured(case, ROLES, texts(case, 8))
    left = [message for message in caplog.messages if "left" in message]
    assert caplog.messages[0] == "role tests: 4 heads and sets in 9 stages"
    assert [message.partition(":")[0] for message in left] == [f"role tests, stage {n} of 9" for n in range(1, 9)]
    placebos = 1  # the other head of the layer, for each row
    minutes = [10 * (7 * 4 + placebos) / (4 + placebos), *(10 * ((8 - n) * 4 + placebos) / 4 for n in range(2, 9))]
    assert [message.partition(": ")[2] for message in left[:-1]] == [
        f"about {time:.0f} min left" for time in minutes[:-1]
    ]


def test_heads_alone_have_rows_and_sets_are_of_all_heads(case, table):
    some = measured(case, ROLES, heads=[EXACT], n_resamples=200)
    assert list(some.index) == [("dec-self:0:0", "previous"), ("all 3", "previous")]
    costs = ["removed", "mean", "uniform", "wrong"]
    costs += [f"role_pattern{end}" for end in ("", ".low", ".high")] + ["p.role_pattern"]  # Holm's are of fewer rows
    pd.testing.assert_frame_equal(some[costs], table.loc[some.index, costs], rtol=1e-6, atol=1e-7)
    none = measured(case, ROLES, texts(case, 8), heads=())
    assert list(none.index) == [("all 3", "previous")]


def test_sharp_attention_to_a_wrong_place_costs_more_than_no_head(case):
    table = measured(case, {ELSEWHERE: Offset(0)}, metric="agreement", n_resamples=200)
    row = table.loc[("dec-self:0:2", "offset=0")]
    assert row["role_pattern"] > row["removed"] > 0
    assert row["explained"] <= row["explained.high"] < 0
    assert row["verdict"] == VERDICTS[2]
