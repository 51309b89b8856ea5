"""Numbers that README and pages name, read from the committed tables: `{{ roles.sinks }}` in a template is one.

python .docs/measured.py    # writes README.md and pages of .docs from .docs/templates
"""

from __future__ import annotations

import itertools
import json
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
from jinja2 import Environment, StrictUndefined
from scipy import stats

import headroles as hr
from headroles.analysis.intervals import wilson

FIGURES = Path(__file__).resolve().parent.parent / "figures"
TEMPLATES = Path(__file__).resolve().parent / "templates"
MODELS = {  # studies with verdicts
    "multi30k-en-de": "small Marian",
    "minilm-sst2": "MiniLM, SST-2",
    "minilm-mrpc": "MiniLM, MRPC (three trainings)",
    "paper-size": "from scratch",
    "specialists/minilm": "MiniLM as encoder of a translator",
}
sys.path.append(str(FIGURES))
from studies import rows_of  # noqa: E402 - of all studies

Numbers = dict[str, str]


def numbers() -> dict[str, Numbers]:
    """Return the numbers of every page: {page: {name: text}}.

    Raises:
        ValueError: If a sentence of a page is not what the tables say (`holds`).
    """  # noqa: DOC502
    return {page.__name__: page() for page in PAGES}


def table(name: str) -> pd.DataFrame:
    """Load a committed table by its path in `figures`, without suffix."""
    path = FIGURES / name
    return pd.read_csv(path) if path.suffix == ".csv" else hr.load_table(f"{path}.parquet")


def role_rows(model: str, part: str = "") -> pd.DataFrame:
    """Return the tests of a model's roles."""
    return rows_of(FIGURES / "questions/role-tests/tests.parquet", model=model, part=part)


def of_seed(name: str, seed: int) -> pd.DataFrame:
    """Return a table of a classifier; those of the second and third training are pooled."""
    return rows_of(FIGURES / f"models/{name}-seeds.parquet", seed=str(seed)) if seed else table(f"models/{name}")


def real(name: str, model: str) -> pd.DataFrame:
    """Return the rows of one of the real models in a table."""
    return rows_of(FIGURES / f"models/real-models/{name}.parquet", of=model)


def specialists(name: str, study: str) -> pd.DataFrame:
    """Return the rows of a study of specialised heads in a table."""
    return rows_of(FIGURES / f"questions/specialists/{name}.parquet", study=study)


def read(name: str) -> dict:
    """Load a committed JSON file by its path in `figures`, without suffix."""
    return json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))


def holds(sentence: str, condition: object) -> None:
    """Raise an error, and so end the build of the site, if a sentence of a page is not so."""
    if not condition:
        raise ValueError(f"the tables no longer say so: {sentence}; mend the page, and this line")


def grid(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def lined(header: str, rows: Iterable[str]) -> str:
    """Return lines of a Markdown table under a header: all of it, since rows by themselves are no table to MyST."""
    return "\n".join([f"| {header} |", "|---" * (header.count("|") + 1) + "|", *rows])


def interval(row: pd.Series, name: str, form: str = ".3f") -> str:
    """Return a number with its interval: 0.915 [0.888, 0.940]."""
    low, value, high = (f"{row[column]:{form}}" for column in (f"{name}.low", name, f"{name}.high"))
    return f"{value} [{low}, {high}]".replace("-0.00 ", "0.00 ").replace("-0.00]", "0.00]").replace("[-0.00,", "[0.00,")


def t_interval(changes: pd.Series) -> pd.Series:
    """Return the mean of paired changes with its interval by Student's t, as `less`."""
    low, high = stats.t.interval(0.95, len(changes) - 1, changes.mean(), stats.sem(changes))
    return pd.Series({"less": changes.mean(), "less.low": low, "less.high": high})


def flags(roles: pd.DataFrame, family: str = "") -> pd.Series:
    """Return whether each head has a role of a family, of any by default."""
    return roles[[name for name in roles if roles[name].dtype == bool and str(name).startswith(family)]].any(axis=1)


COVERAGE = ["intervals of", "settings", "runs each", "covered, least", "covered, median", "percentiles alone, least"]
WHOLE = {"predictors": "predictors", "decisions": "decided"}  # shown as they are
PREDICTED = {
    "corpus": "corpus",
    "metric": "metric",
    "how": "precision",
    "ablated": "ablated",
    "width": "width",
    "coverage population": "covered",
    "least": "worst head",
    "same": "same",
}


def csv(name: str) -> pd.DataFrame:
    """Load a table of the checks of quality."""
    return table(f"engineering/quality/{name}.csv")


def whole(rows: pd.DataFrame) -> str:
    """Return a table as it is in Markdown."""
    return grid(
        [*rows],
        [
            ["" if pd.isna(cell) else f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in rows.itertuples(index=False)
        ],
    )


def quality() -> Numbers:
    """Mutants of the code, and lines that tests run."""
    mutation, coverage = read("engineering/quality/mutation")["total"], read("engineering/quality/coverage")["total"]
    low, high = wilson(mutation["killed"] / mutation["run"], mutation["run"])
    work = read("engineering/quality/forwards")
    sampled = work["1.1"]
    coverage_of = [
        [
            name,
            str(len(rows)),
            f"{rows.runs.iloc[0]}",
            f"{rows.covered.min():g}",
            f"{rows.covered.median():.3f}",
            f"{rows.percentiles.min():g}".replace("nan", ""),
        ]
        for name, rows in csv("coverage").query("not setting.str.startswith('p of')").groupby("of", sort=False)
    ]
    tries = csv("negative-controls").groupby(["study", "control"], sort=False)[["yes", "of"]].sum()
    held = (tries.yes.astype(str) + " of " + tries.of.astype(str)).unstack("control").fillna("")
    return {
        "coverage_rows": grid(COVERAGE, coverage_of),
        "controls": grid(
            ["tables of", *held], [[study, *row] for study, row in zip(held.index, held.to_numpy(), strict=True)]
        ),
        **{name: whole(csv(file)) for name, file in WHOLE.items()},
        "predicted": whole(csv("predicted")[[*PREDICTED]].rename(columns=PREDICTED).round(3)),
        "ablated": f"{sampled['share']:.2f}",
        "forwards": f"{sampled['forwards']:.0f}",
        "whole": f"{work['whole']['forwards']:.0f}",
        "decided": f"{sampled['same decision']:.2f}",
        "decided_clear": f"{sampled['same decision, clear']:.3f}",
        "mutants": f"{mutation['mutants']:,}",
        "run": str(mutation["run"]),
        "noticed": f"{mutation['killed'] / mutation['run']:.2f} [{low:.2f}, {high:.2f}]",
        "killed": f"{mutation['killed']:,}",
        "survived": str(mutation["survived"]),
        "covered": f"{coverage['percent']:.1f}",
    }


def roles() -> Numbers:
    """Roles of MiniLM and of the small Marian on several corpora."""
    minilm = table("models/minilm/pud/roles")
    holds("MiniLM has two positional heads, six syntactic ones", [
        flags(minilm, name).sum() for name in ("positional", "syntactic")] == [2, 6])  # fmt: skip
    marian = {name: table(f"models/multi30k-en-de/{name}/roles") for name in ("multi30k", "pud", "ewt")}
    holds("the Marian has no encoder head with a positional, syntactic or rare-word role", not any(
        flags(each.loc[["enc-self"]], family).any() for each in marian.values()
        for family in ("positional", "syntactic", "rare")))  # fmt: skip
    subjects = [table(f"models/minilm/{name}/roles")["syntactic[nsubj dep>head]"].any() for name in ("pud", "ewt")]
    holds("heads for subjects are found on web text, not on news and wiki", subjects == [False, True])
    moves = {f"moves_{name}": str(flags(each.loc[["cross"]], "alignment").sum()) for name, each in marian.items()}
    sinks, free = flags(minilm, "sink").sum(), (~flags(minilm)).sum()
    return {"sinks": str(sinks), "free": str(free), "heads": str(len(minilm)), **moves}


def role_tests() -> Numbers:
    """What heads cost under the pattern of their role."""
    smollm2 = role_rows("smollm2", "repeated").loc[("all 5", "induction")]
    gemma3 = role_rows("gemma3", "repeated").loc[("all 3", "induction")]
    holds("under exact induction they lose nothing", max(smollm2["role_pattern.high"], gemma3["role_pattern.high"]) < 0)
    yes, unexplained, none = (
        *("its role is what it does", "has the pattern, but the pattern does not explain it"),
        "no measurable effect on this corpus",
    )
    previous = role_rows("smollm2", "previous").xs("offset=-1", level="role")["verdict"]
    counts = previous.drop(index=["dec-self:16:0", "all 9"]).value_counts()
    holds("16:0 passes; to four of eight it costs more, two are undecided, two do not matter", (
        previous["dec-self:16:0"], counts.index[0], *counts) == (yes, unexplained, 4, 2, 2))  # fmt: skip
    verdicts = role_rows("gemma3", "previous").droplevel("role")["verdict"]
    holds("of Gemma 3's layer 4:1 alone passes", verdicts.index[verdicts == yes].tolist() == ["dec-self:4:1"])
    untrained = role_rows("smollm2", "untrained")["verdict"]
    numbers = {"no measurable effect on this corpus": 26, "too few places": 14, "undecided": 1}
    kinds = untrained.str.partition(";")[0]  # of sets a count of members follows
    holds("with random weights no head is shown to matter", kinds.value_counts().to_dict() == numbers)
    near = [
        {verdict.partition(";")[0] for verdict in role_rows(name, "previous-untrained")["verdict"]}
        for name in ("smollm2", "gemma3")
    ]
    holds("with random weights no head of these layers passes", near == [{none}, {none, "undecided"}])
    exchanged = role_rows("smollm2", "repeated-exchanged")["verdict"]
    holds("with two layers exchanged none of three passes", (len(exchanged), exchanged.eq(yes).sum()) == (4, 0))
    decided = role_rows("mpnet", "undecided").drop(index="all 3", level="heads")["verdict"]
    holds("MPNet's three all do something else", decided.tolist() == [unexplained] * 3)
    mpnet, marian = (role_rows(name) for name in ("mpnet", "marian"))
    together = [mpnet.loc[("all 3", "offset=-1")], mpnet.loc[("all 2", "offset=1")], marian.loc[("all 11", "diagonal")]]
    times = [row["role_pattern"] / row["removed"] for row in together]
    _fixed_offsets()
    rows = runpy.run_path(str(FIGURES / "questions/role-tests/table.py"))["rows"]()
    alone = [
        rows[~rows.index.str.startswith("all ")] == yes
        for rows in (
            role_rows(name, "repeated").xs("induction", level="role")["verdict"] for name in ("smollm2", "gemma3")
        )
    ]
    return {
        "alone": " and ".join(f"{passed.sum()} of {len(passed)}" for passed in alone) + " by themselves",
        "smollm2": f"{smollm2['removed']:.1f}",
        "gemma3": f"{gemma3['removed']:.1f}",
        "placebo": f"{smollm2['placebo_removed']:.2f}",
        "one": f"{role_rows('gemma3', 'repeated').loc[('dec-self:11:2', 'induction'), 'removed']:.1f}",
        "least": f"{min(times):.0f}",
        "most": f"{max(times):.0f}",
        "rows": lined(
            "heads | removed | exact pattern | cheapest control | other heads: removed, this pattern | verdict",
            rows,
        ),
    }


def _fixed_offsets() -> None:
    """Compare the cheapest of six offsets with the dependency, in the five tests of MiniLM."""
    offsets, trees = (role_rows("minilm", part).reset_index() for part in ("fixed-offset", ""))
    offsets["role"] = offsets["role"].str.extract(r"where=(dependency.*),offset", expand=False)
    best = offsets.loc[offsets.groupby(["heads", "role"])["role_pattern"].idxmin()].set_index(["heads", "role"])
    both = best.join(trees.set_index(["heads", "role"]).add_suffix(" of trees"), how="inner")
    both = both[~both.index.get_level_values("heads").str.startswith("all ")]
    cheaper = both["role_pattern.high"] < both["role_pattern.low of trees"]
    dearer = both["role_pattern.low"] > both["role_pattern.high of trees"]
    holds("the intervals overlap in four of five tests, in one the offset is cheaper", (
        len(both), cheaper.sum(), dearer.sum(), cheaper.idxmax()) == (5, 1, 0, ("enc-self:2:8", "dependency=nsubj")),
    )  # fmt: skip


def real_models() -> Numbers:
    """Roles, effects and survival in SmolLM2, Gemma 3 and MPNet."""
    roles, relate = real("roles", "smollm2"), real("relate", "smollm2")
    rows, induction = relate.set_index(["role", "outcome"]), roles.index[roles["induction"]]
    holds("SmolLM2's five induction heads have less importance than their neighbours", (
        len(induction) == 5, rows.loc[("induction", "importance"), "holm"] < 0.05,
        rows.loc[("induction", "importance"), "within.high"] < 0) == (True, True, True))  # fmt: skip
    holds("sinks have less importance and survive less often in SmolLM2", rows.loc["sink"].loc[
        ["importance", "survival[l0 68]"], "within.high"].max() < 0)  # fmt: skip
    holds("neither is shown in Gemma 3", real("relate", "gemma3")["holm"].min() == 1)
    for model, chance in {"smollm2": 0, "gemma3": 1, "mpnet": 0}.items():
        tests = real("relate", model)
        shown = tests[tests["role"].isin(["positional", "syntactic", "duplicate", "any"]) & tests["holm"].lt(0.05)]
        holds("heads with a role other than a sink are not shown to matter more", shown.empty)
        untrained = real("untrained-roles", model).select_dtypes(bool).any(axis=1).sum()
        holds("with random weights one of 486 heads passes the threshold of a role", untrained == chance)
    sums = {
        name: real("ablation", name).iloc[:, 0].groupby(level="layer").sum() for name in ("smollm2", "gemma3", "mpnet")
    }
    shares = {name: each / each.sum() for name, each in sums.items()}
    parts = {"first_two": shares["smollm2"].loc[:1].sum(), "gemma3_first_two": shares["gemma3"].loc[:1].sum(),
             "mpnet_last": shares["mpnet"].loc[11]}  # fmt: skip
    lines = runpy.run_path(str(FIGURES / "models/real-models/table.py"))["rows"]()
    header = "model | heads with the role | loss without it, nats (MPNet: agreement) | importance | survival at 1/4"
    found = {name: f"{part:.2f}".lstrip("0") for name, part in parts.items()} | {"rows": lined(header, lines)}
    return found | _stable() | _sizes() | _retrained() | _tasks() | _rounded()


def _stable() -> Numbers:
    """How many syntactic heads keep their role in 95 % of the resamples."""
    found = {}
    for model, end in (("smollm2", ""), ("gemma3", "_gemma3"), ("mpnet", "_mpnet")):
        roles = real("roles", model)
        names = [name for name in roles if name.startswith("syntactic") and name.endswith("]")]
        has = roles[names].astype("boolean").fillna(value=False).to_numpy(bool)
        keeps = has & (roles[[f"{name}.stability" for name in names]].to_numpy(float) >= 0.95)
        found[f"stable{end}"] = (
            f"{keeps.any(axis=1).sum()} of {has.any(axis=1).sum()}" if end else str(keeps.any(axis=1).sum())
        )
    return found


def _sizes() -> Numbers:
    """What sizes of SmolLM2 and Gemma 3 lose without retraining, as rows of the page's table."""
    shares, lines = ("0.75", "0.5", "0.25", "0.125"), []
    for model, name, heads in (("smollm2", "SmolLM2", 270), ("gemma3", "Gemma 3", 72)):
        losses = real("sizes", model).set_index("set")["ablation[loss]"]
        for number, share in enumerate(shares):
            part = losses[losses.index.str.endswith(f" {share}")]
            random = part[part.index.str.startswith("random")]
            cells = [f"{part[f'{way} {share}']:.2f}" for way in ("l0", "importance")]
            kept = f"{round(heads * float(share))} of {heads}"
            first = f"{name}, {kept}" if number == 0 else kept
            lines.append([first, *cells, f"{random.min():.2f} to {random.max():.2f}"])
    names = ["heads left", "those that gates keep", "the most important", "three random draws"]
    kept = [(real("survival", model)[column] == 1).sum() for model, column in
            (("gemma3", "survival[l0 18]"), ("smollm2", "survival[l0 68]"))]  # fmt: skip
    holds("of Gemma 3 two are kept by all three seeds, of SmolLM2 all three 32", kept == [2, 32])
    return {"sizes": grid(names, lines)}


def _retrained() -> Numbers:
    """How far gates lead at 9 heads of Gemma 3 after retraining."""
    losses = {
        model: real("compare-pruning-seeds", model)
        .set_index(["strategy", "heads", "tuned"])["value"]
        .drop("all heads")
        .unstack("strategy")
        .xs(True, level="tuned")
        for model in ("smollm2", "gemma3")
    }
    both = losses["smollm2"][["l0", "importance"]].max(axis=1)
    holds("retraining keeps both choices ahead of chance in SmolLM2", (both < losses["smollm2"]["random"]).all())
    ahead = losses["gemma3"][["importance", "random"]].min(axis=1) - losses["gemma3"]["l0"]
    holds("after, nothing is left of their lead at 54 and 18 heads, less than 0.2 nats at 36", (
        (ahead.loc[[54, 18]] < 0).all(), 0 < ahead[36] < 0.2) == (True, True))  # fmt: skip
    return {"ahead_at_9": f"{ahead[9]:.2f}"}


def _tasks() -> Numbers:
    """Heads on which tasks of the language models depend."""
    found: Numbers = {}
    for model in ("smollm2", "gemma3"):
        scores, effects = (real(f"task-{what}", model) for what in ("scores", "ablation"))
        objects, agreement = (
            {*effects.index[(effects[f"{column}.holm"] < 0.05) & (effects[column] < 0)]}
            for column in ("ablation[difference precision=1.1]", "ablation[pair_difference precision=1.1]")
        )
        random = real("untrained-retrieval", model)["retrieval"].max()
        holds("with random weights no head copies more than a tenth", random < 0.1)
        found |= {
            f"{model}_objects": str(len(objects)),
            f"{model}_agreement": str(len(agreement)),
            f"{model}_both": str(len(objects & agreement)),
            f"{model}_copy": str((scores["retrieval"] > 0.1).sum()),
        }
    return found


def _rounded() -> Numbers:
    """What rounding SmolLM2's weights again changes."""
    changes = table("models/real-models/rounded.csv").set_index(["weights", "score"])
    four = changes.loc["Q4_0"]
    counts = {score: row.tolist() for score, row in four[["kept", "lost", "gained"]].iterrows()}
    holds("the previous-token head, four of five induction heads, one of two duplicate-token heads stay", (
        counts["position"], counts["induction"], counts["duplicate"]) == ([1, 0, 0], [4, 1, 0], [1, 1, 0]))  # fmt: skip
    return {
        "loss": f"{changes.loc['as they are', 'loss'].iloc[0]:.2f}",
        "loss_rounded": f"{changes.loc['Q4_0', 'loss'].iloc[0]:.2f}",
    }


def classifier() -> Numbers:
    """Heads of classifiers, ablated one by one and many: MiniLM on SST-2 and MRPC."""
    effects = table("models/minilm-sst2/ablation-accuracy-head-zero")
    holds("no head has p < 0.01", (effects["ablation[accuracy].p"] >= 0.01).all())
    curves = table("models/minilm-sst2/curves-accuracy").set_index(["order", "masked"])["value"]["importance"]
    return {
        "most": f"{effects['ablation[accuracy]'].abs().max():.3f}",
        "at_43": f"{100 * (curves[0] - curves[43]):.1f}",
        "at_58": f"{100 * (curves[0] - curves[58]):.1f}",
        **_mrpc(),
    }


def _mrpc() -> Numbers:
    """Three trainings of MiniLM on MRPC."""
    found: Numbers = {}
    for seed in range(3):
        effects = of_seed("minilm-mrpc/ablation-accuracy-head-zero", seed)
        sure = effects[effects["ablation[accuracy].holm"] < 0.05].sort_values("ablation[accuracy]")
        curves = of_seed("minilm-mrpc/curves-accuracy", seed).set_index(["order", "masked"])["value"]
        whole = curves["importance"][0]
        once, again = (100 * (whole - curves[order][36]) for order in ("importance", "importance, again"))
        found |= {
            f"mrpc_{seed}": f"{whole:.3f}",
            f"mrpc_{seed}_once": f"{once:.1f}",
            f"mrpc_{seed}_again": f"{again:.1f}",
        }
        names = [f"layer {layer} head {head}" for _, layer, head in sure.index]
        if seed == 0:
            row = [interval(one, "ablation[accuracy]") for _, one in sure.iterrows()]
            found["mrpc_heads"] = grid(["head ablated", *names], [["change of the accuracy", *row]])
            found["mrpc_one_class"] = f"{curves['importance', 72]:.3f}"
            holds("with 50 ablated nothing is left but one class", curves["importance", 50] == curves["importance", 72])
            holds("no other head costs a point", effects["ablation[accuracy]"].drop(sure.index).min() > -0.01)
            first = sure
        else:
            values = [f"{name} ({value:.3f})" for name, value in zip(names, sure["ablation[accuracy]"], strict=True)]
            found[f"mrpc_{seed}_heads"] = ", ".join(values[:-1]) + f" and {values[-1]}"
            holds("three heads matter, three of these four", len(sure) == 3 and {*sure.index} < {*first.index})
            holds("none is for the better", sure["ablation[accuracy]"].max() < 0)
    claims = [
        ("Fig. 1: most heads change the score little", "fig1"),
        ("Table 1: half of the effects are for the better", "table1"),
        ("Fig. 3: 40 % can be ablated by importance", "fig3"),
    ]
    return found | {"mrpc_verdicts": _verdicts("minilm-mrpc", claims)}


def _verdicts(study: str, claims: list[tuple[str, str]]) -> str:
    """Return the verdicts on claims of Michel et al. in three trainings."""
    verdicts = read("papers/michel2019/verdicts")
    rows = [
        [text, *(verdicts[f"{study}{seed}"][claim]["answer"] for seed in ("", "/S-1", "/S-2"))]
        for text, claim in claims
    ]
    return grid(["claim of Michel et al.", "seed 0", "seed 1", "seed 2"], rows)


def cache_budgets() -> Numbers:
    """What a cache of a quarter of the key-value heads costs."""
    losses = (
        table("questions/cache-budgets/losses.csv")
        .query("what == 'answer' and share == 0.75")
        .set_index(["model", "ranking"])
    )
    effect = losses["effect"].xs("integrated-gradients", level="ranking")
    holds("the loss falls", losses.loc[("smollm2", "integrated-gradients"), "effect.high"] < 0)
    holds("in Gemma 3 it finds the best", effect["gemma3"] <= losses["effect"]["gemma3"].min() + 1e-9)
    rows = table("questions/cache-budgets/comparison.csv").query("share == 0.75").set_index(["model", "other"])
    holds("the test is shown in both models", (rows["holm"].dropna() < 0.001).all())
    budget = rows_of(FIGURES / "questions/cache-budgets/budget.parquet", model="smollm2")["retrieval"]
    speed = table("questions/cache-budgets/smollm2-speed.csv").set_index("tokens")
    role = table("questions/cache-budgets/smollm2-roles.csv").set_index("role").loc["induction"]
    longer = {
        f"{model}_{name}": interval(row, "effect", ".2f")
        for model in ("smollm2", "gemma3")
        for name, row in (
            ("ours", losses.loc[(f"{model}-2000", "integrated-gradients")]),
            ("kvpress", losses.loc[(f"{model}-2000", "kvpress")]),
            ("less", rows.loc[(f"{model}-2000", "kvpress")]),
        )
    }
    plain = {}
    for model in ("smollm2", "gemma3"):
        texts = rows_of(FIGURES / "questions/cache-budgets/texts.parquet", model=model).query("what == 'plain'")
        texts = texts.set_index(["ranking", "text"])["loss"].unstack("ranking")
        row = t_interval(texts["integrated-gradients"] - texts["kvpress"])
        holds("kvpress' choice surely costs less on plain text", row["less.low"] > 0)
        plain[f"{model}_plain"] = interval(row, "less", ".4f" if model == "smollm2" else ".3f")
    texts = rows_of(FIGURES / "questions/cache-budgets/texts.parquet", model="smollm2")
    mean = texts.query("what == 'answer' and share == 0.75").groupby("ranking")["loss"].mean()
    less = sorted(mean[f"random-{draw}"] - mean["integrated-gradients"] for draw in range(3))
    return {
        **plain,
        "draws": ", ".join(f"{each:.2f}" for each in less),
        "smollm2": f"{-effect['smollm2']:.2f}",
        "gemma3": f"{effect['gemma3']:.2f}",
        "longer": f"{effect['smollm2-2000']:.2f}",
        "longer_kvpress": f"{-rows.loc[('smollm2-2000', 'kvpress'), 'effect']:.2f}",
        "kvpress": f"{-rows.loc[('smollm2', 'kvpress'), 'effect']:.2f}",
        "random": f"{-rows.loc[('smollm2', 'random'), 'effect']:.2f}",
        "stream": f"{(budget == 0).sum():.0f} of {len(budget)}",
        "bytes": f"{100 * losses.loc[('smollm2', 'integrated-gradients'), 'bytes']:.0f} %",
        "times": "{:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*speed["time"]),
        "induction_groups": f"{role['groups']:.0f}",
        "induction_kept": f"{100 * role['kept']:.0f} %",
        "induction_effect": f"{role['effect']:.3f}",
        **longer,
    }


def alignment() -> Numbers:
    """What lists of alignment heads of Whisper are worth."""
    sets = table("questions/alignment/sets.csv")
    rows = sets.set_index(["model", "at", "shift", "chosen_on", "set"])

    def error(model: str, at: str, name: str, *, shift: bool = True, on: str = "synthetic") -> str:
        return interval(rows.loc[(model, at, shift, on, name)], "error", ".0f")

    fixed = rows.loc[("base", "next", True, "synthetic", "published")]
    holds("the test that was fixed is not shown", fixed["difference.low"] < 0 < fixed["difference.high"])
    upper, every = (rows.loc[("base", "next", True, "synthetic", name)] for name in ("upper half", "all"))
    holds("choosing beats all heads, not the upper half", every["difference.high"] < 0 < upper["difference.high"])
    read = rows.loc[("base", "read", True, "synthetic", "chosen")]
    holds("heads at read err less than the published ones", read["error.high"] < fixed["error.low"])
    tiny = rows.loc[("tiny.en", "next", True, "synthetic", "published")]
    holds("for tiny.en the chosen list is better", tiny["difference.high"] < 0)
    shaken = rows.loc[[(f"base, noise {seed}", "next", True, "synthetic", "published") for seed in range(3)]]
    holds("with noise the chosen list errs less in each seed", shaken["difference.high"].max() < 0)
    lines = [
        [name, *(error(model, at, name) for model in ("base", "tiny.en") for at in ("next", "read")),
         error("base", "next", name, shift=False), error("base", "next", name, on="human")]
        for name in ("chosen", "published", "upper half", "all", "random")
    ]  # fmt: skip
    header = ["heads", "base, next", "base, read", "tiny.en, next", "tiny.en, read", "base, next, no shift"]
    taught = {}
    for model, teacher in (("tiny.en", "base"), ("base", "tiny.en")):
        for end, by in (("", ""), ("_true", ", shift by true ones")):
            name = f"{model}, times of {teacher}{by}"
            row = rows.loc[(name, "next", True, "synthetic", "published")]
            taught[f"taught_{model.replace('.', '_')}{end}"] = interval(row, "difference", ".0f")
    ends = (("tiny.en, times of base", "difference.high"), ("base, times of tiny.en", "difference.low"))
    up, down = (rows.loc[(name, "next", True, "synthetic", "published"), end] for name, end in ends)
    holds("tiny.en learns from base, base not from tiny.en", up < 0 < down)
    return {
        "chosen": f"{rows.loc[('base', 'next', True, 'synthetic', 'chosen'), 'error']:.0f}",
        "published": f"{fixed['error']:.0f}",
        "primary": interval(fixed, "difference", ".1f"),
        "p": f"{fixed['p']:.2f}",
        "unshifted": f"{-rows.loc[('base', 'next', False, 'synthetic', 'published'), 'difference']:.0f}",
        "read": f"{read['error']:.0f}",
        "read_near": f"{100 * read['within[100]']:.0f} %",
        "all": f"{-every['difference']:.0f}",
        "upper": interval(upper, "difference", ".1f"),
        "shaken": ", ".join(interval(row, "difference", ".1f") for _, row in shaken.iterrows()),
        **taught,
        "shaken_p": ", ".join(p_of(p) for p in shaken["p"]),
        "spoilt": f"{shaken['error'].min():.0f} to {shaken['error'].max():.0f}",
        "tiny": interval(tiny, "difference", ".0f"),
        "rows": grid([*header, "base, next, chosen on human, measured on synthetic"], lines),
    }


def whisper() -> Numbers:
    """Costs of Whisper's heads, and the words to which cross-attention heads listen."""
    speech = {
        name: rows_of(FIGURES / "models/whisper/heads.parquet", corpus=name).sort_index()
        for name in ("human", "synthetic")
    }
    heads, found, rows = speech["human"], {}, []
    cost, kinds = heads["ablation[loss]"], {"enc-self": "encoder", "dec-self": "decoder", "cross": "cross-attention"}
    for (corpus, scored), (kind, name) in itertools.product(speech.items(), kinds.items()):
        ordered = scored["ablation[loss]"].loc[[kind]].sort_values(ascending=False)
        first, second = (f"L{layer}H{head} {value:.2f}" for (_, layer, head), value in ordered.head(2).items())
        shown = (scored.loc[[kind], "ablation[loss].holm"] < 0.05).sum()
        rows.append([corpus, name, str(shown), f"{ordered.sum():.2f}", first, second])
        key = f"{corpus}_{kind.replace('-', '_')}"
        found[f"{key}_sum"], found[f"{key}_first"] = f"{ordered.sum():.1f}", f"{first} nats".replace(" ", " (", 1) + ")"
        found[f"{key}_share"] = f"{100 * ordered.iloc[0] / ordered.sum():.0f} %"
    most = [tuple(scored.loc[[kind], "ablation[loss]"].idxmax() for kind in ("dec-self", "cross"))
            for scored in speech.values()]  # fmt: skip
    holds("the same two heads cost most on both", most[0] == most[1])
    again = speech["synthetic"].loc[["cross"]]
    again = again.index[again["links.low"] > again["links.baseline"]]
    cross = heads.loc[["cross"]]
    even = cross["links.baseline"].iloc[0]
    read, following = (cross[f"{column}.low"] > cross[f"{column}.baseline"] for column in ("links", "links[next]"))
    holds("three heads listen to the word read, the two costliest among them", (
        read.sum(), cost.loc[["cross"]].nlargest(2).index.isin(cross.index[read]).all()) == (3, True))  # fmt: skip
    published = {(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)}
    said = cross[read | following].sort_values("ablation[loss]", ascending=False)
    lines = [
        [f"L{layer}H{head}", interval(row, "links", ".2f"), interval(row, "links[next]", ".2f"),
         interval(row, "ablation[loss]", ".3f"), "yes" if (layer, head) in published else ""]
        for (_, layer, head), row in said.iterrows()
    ]  # fmt: skip
    here = sum(place in published for place in said.index.droplevel("kind"))
    holds("on synthetic speech they do, too", cross.index[read].isin(again).all())
    holds("none of the three is published", not any(place in published for place in cross[read].index.droplevel(0)))
    return found | {
        "reading": ", ".join(f"L{layer}H{head} {row['links']:.2f}" for (_, layer, head), row in cross[read].iterrows()),
        "following_count": {9: "nine", 10: "ten", 11: "eleven"}.get(following.sum(), str(following.sum())),
        "again": str(len(again)),
        "kinds": grid(["speech", "kind", "heads shown to cost", "sum", "first", "second"], rows),
        "listeners": grid(["head", "just read", "next", "loss without it", "published"], lines),
        "even": f"{even:.2f}",
        "published": str(here),
    }


def retrieval() -> Numbers:
    """Whether three scores of retrieval name the same heads of SmolLM2."""
    rows = table("questions/retrieval/agreement.csv").set_index(["score", "against"])
    pairs, halves = rows[rows["spearman.low"].notna()], rows[rows["spearman.low"].isna()]
    cells = [
        [f"`{score}`", f"`{against}`" if against in rows.index.unique("score") else "the other half of the texts",
         interval(row, "spearman", ".2f") if row.notna()["spearman.low"] else f"{row['spearman']:.2f}",
         f"{row['of first 10']:.0f}", row["heads"]]
        for (score, against), row in rows.iterrows()
    ]  # fmt: skip
    same = pairs["of first 10"].astype(int)
    holds("copying and contribution share most", same.idxmax() == ("retrieval", "contribution"))
    return {
        "most": str(same.max()),
        "fewest": " and ".join(map(str, same.drop(same.idxmax()))),
        "halves": f"{halves['of first 10'].min():.0f} to {halves['of first 10'].max():.0f}",
        "ranks": f"{pairs['spearman'].min():.2f} to {pairs['spearman'].max():.2f}",
        "rows": grid(["score", "against", "rank correlation", "of the first ten", "which"], cells),
    }


def relevance() -> Numbers:
    """How far scores of relevance rank heads alike, and which finds the heads that matter."""
    ranks = [table(f"models/{model}/relevance/agreement") for model in ("minilm", "multi30k-en-de")]
    areas = table("models/minilm/relevance/areas")
    best = ["relevance[cp logit].size", "relevance[attn logit].size"]
    holds("cp and attn find the heads best in MiniLM", {*areas["area"].nlargest(2).index} == {*best})
    holds("surely", areas.loc[best, "area.low"].min() > areas["area.high"].drop(best).max())
    first = table("models/multi30k-en-de/relevance/areas").nlargest(5, "area")
    holds("five are not told apart in the Marian", first["area.low"].max() < first["area.high"].min())
    minilm, marian = (f"{rank.loc['relevance[gradient logit].size', 'all']:.3f}" for rank in ranks)
    inner = [f"{rank.loc['relevance[gradient logit].size', 'within']:.2f}" for rank in ranks]
    return {"minilm": minilm, "marian": marian, "minilm_within": inner[0], "marian_within": inner[1]}


def ablation() -> Numbers:
    """Heads of the small Marian, ablated one by one."""
    effects, name = table("models/multi30k-en-de/ablation/ablation-loss-head-zero"), "ablation[loss]"
    sure = effects[effects[f"{name}.holm"] < 0.01]
    holds("all for the worse", (sure[name] > 0).all())
    kept = table("models/multi30k-en-de/ablation/best-loss-zero-halves")
    free = kept[(kept["effect.p"] >= 0.01) | (kept["effect"] < 0)]
    holds("four of them of the encoder; the last cross-attention layer costs most", (
        len(free.loc[["enc-self"]]), kept["effect"].idxmax()) == (4, ("cross", 5)))  # fmt: skip
    rows = table("papers/michel2019/fig2")
    row = rows[(rows["heads of"] == "enc-self") & rows["corpus"].str.contains("mscoco")].iloc[0]
    return {
        "heads": str(len(effects)),
        "sure": str(len(sure)),
        "encoder": str(len(sure.loc[["enc-self"]])),
        "free": f"{len(free)} of {len(kept)}",
        "spearman": f"{row['spearman']:.2f}",
        "untrained": f"{row['untrained']:.2f}",
    }


def pruning() -> Numbers:
    """The small Marian pruned by L0 gates."""
    encoder, whole = (
        table(f"models/multi30k-en-de/pruning/sparsity-l0{kind}").set_index("heads") for kind in ("-enc-self", "")
    )
    ten = encoder.loc[144 - 48 + 10]
    holds("ten encoder heads are not told from all", ten["change.high"] > 0 > ten["change.low"])
    holds("three quarters of all cost nothing", whole.loc[108, "change"] > 0)
    holds("encoder heads go first", whole.loc[36, "enc-self"] < whole.loc[36, "dec-self"] < whole.loc[36, "cross"])
    return {
        "ten": f"{ten['value']:.1f}",
        "whole": f"{encoder['value'].iloc[0]:.1f}",
        "half": f"{-whole.loc[72, 'change']:.1f}",
        "quarter": f"{-whole.loc[36, 'change']:.1f}",
    }


COST, RELEVANCE, SURVIVAL = (
    ["ablation[loss]"] * 3,
    ["relevance[cp].size"] * 3,
    ["survival[l0 72]", "", "survival[l0 36]"],  # with half of the heads left
)
PAIRS = {  # of correlations: words, and the columns in the three models
    "importance, cost of ablation": ("importance", *COST),
    "importance, survival": ("importance", *SURVIVAL),
    "importance, attribution patching": ("importance", *["attribution[AtP].size"] * 3),
    "importance, relevance": ("importance", *RELEVANCE),
    "confidence, cost of ablation": ("confidence", *COST),
    "confidence, survival": ("confidence", *SURVIVAL),
}


def correlations() -> Numbers:
    """Rank correlations of scores, effects and survival."""
    marian, decoder, classifier = (
        table(f"models/{place}/scores").set_index(["first", "second"])
        for place in ("multi30k-en-de/maps", "decoder", "minilm-sst2/correlations")
    )

    def pair(ranks: pd.DataFrame, one: str, other: str, column: str = "all") -> str:
        return f"{ranks.loc[(one, other) if (one, other) in ranks.index else (other, one), column]:.2f}"

    def cell(ranks: pd.DataFrame, one: str, other: str, column: str) -> str:
        key = next((key for key in ((one, other), (other, one)) if key in ranks.index), None)
        return interval(ranks.loc[key], column, ".2f") if key else ""

    rows = [
        [words if column == "all" else "", where, *(cell(ranks, one, other[place], column) for place, ranks in models)]
        for words, (one, *other) in PAIRS.items()
        for column, where in (("all", "all heads"), ("within", "within layers"))
        for models in [[*enumerate((marian, decoder, classifier))]]
    ]
    patched = [pair(marian, "importance", "attribution[AtP].size", column) for column in ("all", "within")]
    return {
        "marian": pair(marian, "importance", "ablation[loss]"),
        "decoder": pair(decoder, "importance", "ablation[loss]"),
        "classifier": pair(classifier, "importance", "ablation[loss]").lstrip("-"),
        "sharp": pair(marian, "confidence", "ablation[loss]", "within"),
        "survives": pair(classifier, "confidence", "survival[l0 36]", "within"),
        "patched": patched[0],
        "patched_within": patched[1],
        "rows": grid(["scores", "over", "Marian", "small decoder", "classifier"], rows),
    }


def training() -> Numbers:
    """Heads of the small Marian through its training."""
    order = table("models/multi30k-en-de/dynamics/dynamics-order").set_index("epoch")
    return {
        "first": f"{order.loc[1, 'all']:.2f}",
        "first_within": f"{order.loc[1, 'within']:.2f}",
        "sixth_within": f"{order.loc[6, 'within']:.2f}",
        "third": f"{order.loc[3, 'all']:.2f}",
        "aligned": str(order["roles[alignment]"][3]),
        "aligned_last": str(order["roles[alignment]"][10]),
    }


def strategies() -> Numbers:
    """Strategies of pruning, before and after retraining."""
    sst2, marian = (
        table(f"models/{name}/compare-pruning/compare-pruning").set_index(["strategy", "heads", "tuned"])["value"]
        for name in ("minilm-sst2", "multi30k-en-de")
    )
    ahead = [_above_chance("multi30k-en-de", "importance", 72, tuned) for tuned in (False, True)]
    kept = sst2.sort_index().xs(True, level="tuned").drop(["all heads", "random", "-importance"]).groupby("heads")
    ends = 100 * (kept.max() - kept.min())
    by_seeds, below = (
        100 * _above_chance("minilm-sst2", strategy, 18, tuned=False) for strategy in ("importance", "roles")
    )
    holds("importance is not shown to be above chance, roles are below", (
        by_seeds["less.low"] < 0, below["less.high"] < 0) == (True, True))  # fmt: skip
    speed = table("models/minilm/efficiency/efficiency").query("batch == 64 and way == 'cut' and share == 0.5")[
        "speedup"
    ]
    return {
        "by_seeds": interval(by_seeds, "less", ".1f"),
        "below": interval(below, "less", ".1f"),
        "ahead": interval(ahead[0], "less", ".1f"),
        "ahead_tuned": interval(ahead[1], "less", ".1f"),
        "within_36": f"{ends[36]:.1f}",
        "within_18": f"{ends[18]:.1f}",
        "speedup": f"{speed.iloc[0]:.2f}",
        **_places(),
    }


def _above_chance(name: str, strategy: str, heads: int, tuned: bool) -> pd.Series:
    """What a strategy is above random heads, seed by seed, with Student's t."""
    rows = table(f"models/{name}/compare-pruning/compare-pruning-seeds")
    seeds = rows[rows["heads"].eq(heads) & rows["tuned"].eq(tuned)].pivot_table("value", "seed", "strategy")
    return t_interval(seeds[strategy] - seeds["random"])


def _places() -> Numbers:
    """Accuracies of classifiers on MRPC that were pruned, before and after retraining."""
    rows = table("models/minilm-mrpc/compare-pruning/compare-pruning").set_index(["strategy", "tuned"])
    found = {}
    for strategy in rows.index.unique("strategy"):
        key = f"mrpc_{strategy.replace(' ', '_').replace('-', 'minus_')}"
        found |= {
            f"{key}{end}": interval(rows.loc[(strategy, tuned)], "value")
            for end, tuned in (("", False), ("_tuned", True))
        }
    after = rows.xs(True, level="tuned")
    places = after.loc[["bottom", "middle", "top"]]
    holds("places are worse than importance", places["value.high"].max() < after.loc["importance", "value.low"])
    found |= {
        f"mrpc_{key}_short": f"{after.loc[row, 'value']:.3f}"
        for key, row in (("importance", "importance"), ("whole", "all heads"))
    }
    return found


def roles_and_survival() -> Numbers:
    """What roles say of survival beyond chance: tests that were fixed before, and what all heads are worth."""
    found: Numbers = {}
    for folder, fixed, differs in (
        ("captions", "Holm {holm:.3f}", "{:+.1f} [{:.1f}, {:.1f}] BLEU, Holm {holm:.2f}"),
        ("captions/any-length/C", "p {p:.2f}", "loss {:.3f} [{:.3f}, {:.3f}], Holm {holm:.3f}"),
        ("tatoeba", "Holm {holm:.2f}", ""),
        ("minilm", "Holm {holm:.2f}", "loss {:.3f} [{:.3f}, {:.3f}], Holm {holm:.3f}"),
        ("sst2", "Holm {holm:.2f}", "loss {:.3f} [{:.3f}, {:.3f}], Holm {holm:.3f}"),
    ):
        key = folder.partition("/")[2].replace("any-length/C", "more") or folder
        survival = specialists("survival", folder).set_index(["analysis", "predictor", "outcome"])
        row = survival.loc[("primary", "positional", "survival[12]")]
        p, holm = row["population.p"], row["population.holm"]
        holds(
            "no test that was fixed is shown, none refuted",
            (p if key == "more" else holm) > 0.05 and row["population.high"] > 0.2,
        )
        found[f"{key}_fixed"] = f"{interval(row, 'population', '.2f')}, {fixed.format(holm=holm, p=p)}: open"
        if differs:
            pooled = specialists("differences", folder).set_index(["strategy", "against"])
            row = pooled.loc[("roles", "random")]
            numbers = differs.format(*row[["difference", "low", "high"]], holm=row["holm"])
            found[f"{key}_differs"] = f"{numbers}: {'**shown**' if row['holm'] < 0.05 else 'not shown'}"
    partial = table("questions/specialists/german-english.csv").query(
        "predictor == 'positional' and given == 'confidence, sink' and outcome == 'survival[12]'"
    )
    one, other = (f"{row.r:.2f}, p {row.p:.2f}" for row in partial.sort_values("model").itertuples())
    retrained = specialists("controls", "minilm").query("tuned").groupby("strategy")["value"]
    mean = retrained.mean()
    holds("heads nearest to a role lead in each model", retrained.max()["roles"] < retrained.min()["random"])
    pooled = specialists("differences", "minilm").set_index(["strategy", "against"])
    _survivors()
    shares = table("questions/specialists/shares.csv").set_index("what")
    kept = shares["survive"].map(lambda value: f"{value:.2f}")
    holds("the ranges have 288, 16, 8, 14 and 10 heads", shares["heads"].tolist()[:5] == [288, 16, 8, 14, 10])
    holds("of the sharpest heads 8 are positional, 34 not", shares["heads"].tolist()[-2:] == [8, 34])
    found |= dict(zip(("least", "most", "important", "sharp", "elsewhere"), kept.iloc[[0, 4, 5, 6, 7]], strict=True))
    return (
        found
        | _translators()
        | {
            "as_important": str(shares["heads"].iloc[5]),
            "p": f"{shares['p'].iloc[-1]:.3f}".lstrip("0"),
            "german": f"{one}; {other}: in 0 of 2",
            "nearest": f"{mean['random'] - mean['roles']:.3f}",
            "whole": f"{mean['random'] - mean['all heads']:.3f}",
            "weighted": f"{-pooled.loc[('roles', 'random'), 'difference']:.3f}",
        }
    )


def _translators() -> Numbers:
    """How many heads with a role survive in the translators trained from nothing, of ten of each role."""
    overview = table("questions/specialists/overview.csv")
    scratch = overview["of"] == "translators trained from nothing"
    survivors = overview[(overview["panel"] == "survivors") & scratch].set_index("what")
    kept = (survivors["value"] * survivors["heads"]).round(1)
    holds("there are ten positional heads", survivors.loc["positional | positional heads", "heads"] == 10)
    return {
        "translators": str(overview.loc[(overview["panel"] == "rank") & scratch, "models"].iloc[0]),
        "survive": str(kept["positional | positional heads"]),
        "expected": str(kept["positional | expected of their layers"]),
        "syntactic": str(kept["syntactic | syntactic heads"]),
        "syntactic_expected": str(kept["syntactic | expected of their layers"]),
    }


def _survivors() -> None:
    """Check which counts of surviving heads lie beyond chance."""
    survivors = table("questions/specialists/survivors.csv").set_index(["study", "roles", "heads left", "model"])
    minilm, sst2, tatoeba = (survivors.sort_index().loc[study] for study in ("minilm", "sst2", "tatoeba"))
    beyond = (minilm["survive"] > minilm["high"]).loc[["positional", "syntactic", "any of these"], [18, 12], :]
    holds("confirmed in both new models", beyond.loc[["positional", "any of these"]].all())
    holds("not of syntactic heads", not beyond["syntactic"].any())
    beyond = sst2["survive"] > sst2["high"]
    counts = [beyond.loc[("any of these", heads)].sum() for heads in (18, 12)]
    holds("in three classifiers at 18 heads, in one at 12", counts == [3, 1])
    holds("not of positional heads", not beyond.loc["positional", [18, 12], :].any())
    holds("nor in Tatoeba's", not (tatoeba["survive"] > tatoeba["high"]).loc["positional", [6], :].any())


def papers() -> Numbers:
    """Which heads with a function before pruning remain (Voita et al., Fig. 8), in translators with MiniLM."""
    before, left = [], []
    for _, heads in specialists("heads", "minilm").groupby("model"):
        has = pd.DataFrame({"positional": heads["positional"] >= 0.9, "syntactic": heads["syntactic"] >= 0.1})
        before.append(has.sum())
        left.append(has.mul(heads["survival[18]"], axis=0).sum())
        holds("no head has two functions, and none is rare", not has.all(axis=1).any() and heads["rarity"].max() <= 0.5)
        holds("all positional heads remain", left[-1]["positional"] == before[-1]["positional"])
    first, remain = pd.concat(before, axis=1).sum(axis=1), pd.concat(left, axis=1).sum(axis=1)
    return {
        **{paper: _answers(paper) for paper in ("voita2019", "michel2019", "budhraja2020")},
        "before": str(first.sum()),
        "remain": f"{remain.sum():.1f}",
        "chance": f"{first.sum() / 4:.1f}",
        "syntactic": f"{remain['syntactic']:.1f}",
        "of_syntactic": str(first["syntactic"]),
    }


def _answers(paper: str) -> str:
    """Return the verdicts on a paper's claims as a table: a claim, and the answer of each model."""
    verdicts, lines = read(f"papers/{paper}/verdicts"), []
    seeds = {name: [study for study in verdicts if study.partition("/S-")[0] == name] for name in MODELS}
    seeds = {name: studies for name, studies in seeds.items() if studies}
    claims = {artefact: facts["claim"] for study in verdicts.values() for artefact, facts in study.items()}
    for artefact in sorted(claims, key=lambda name: (len(name.rstrip("abc")), name)):
        answers = (
            [verdicts[one][artefact]["answer"] for one in ones if artefact in verdicts[one]] for ones in seeds.values()
        )
        lines.append([f"`{artefact}`", claims[artefact].rstrip("."), *(", ".join(each) for each in answers)])
    return grid(["", "claim", *(MODELS[name] for name in seeds)], lines)


def paper_size() -> Numbers:
    """A Marian of the papers' layers, trained from scratch."""
    roles, sizes = table("models/paper-size/roles"), table("models/paper-size/sparsity-l0-enc-self").set_index("heads")
    holds("no encoder head has a role", not flags(roles.loc[["enc-self"]]).any())
    holds("no loss is shown with 12 heads left", sizes.loc[144 - 36, "change.high"] > 0)
    found = table("models/paper-size/predictors").set_index(["outcome", "score"])["holm"]
    by_size = [f"{found[f'survival[l0 {size} enc-self]', 'importance']:.3f}" for size in (24, 12, 6)]
    smallest = found.xs("survival[l0 3 enc-self]", level="outcome")
    holds("importance predicts survival, but not of three heads", float(max(by_size)) < 0.05 < smallest.min())
    told = {"importance": ", ".join(by_size), "three": f"smallest p {smallest.min():.2f}, of {smallest.idxmin()}"}
    return told | {"moves": str(flags(roles, "alignment").sum()), "pruned": f"{-sizes.loc[144 - 36, 'change']:.1f}"}


def circuits() -> Numbers:
    """Which heads of SmolLM2 can do induction by their weights, and which do."""
    pairs, heads = table("questions/circuits/pairs"), table("questions/circuits/heads")
    strength, induction = heads["circuit[induction]"].dropna(), heads["induction"]
    after = pairs[(pairs["layer"] == 16) & (pairs["head"] == 0) & pairs["to_layer"].isin([17, 18])]
    rows = after.sort_values("matching", ascending=False)[["to_layer", "to_head", "matching"]].to_numpy()
    most = [{*column.nlargest(count).index} for count in (5, 10) for column in (strength, induction)]
    holds("the first five are those that do it most", {("dec-self", int(a), int(b)) for a, b, _ in rows[:5]} == most[1])
    holds("4 of the five strongest, 7 of ten", [len(most[0] & most[1]), len(most[2] & most[3])] == [4, 7])

    def short(value: float) -> str:
        return f"{value:.2f}".replace("0.", ".", 1)

    columns = (("strength", strength), ("does", induction))
    idle = {
        f"{name}_{layer}_{head}": short(column["dec-self", layer, head])
        for name, column in columns
        for layer, head in ((18, 8), (20, 7))
    }
    return {
        "deviation": f"{pairs['matching'].std():.3f}".replace("0.", ".", 1),
        "pairs": f"{len(pairs):,}",
        "rest": f"{rows[6][2]:.3f}".replace("0.", ".", 1),
        "strong": str(len(strength)),
        "rank": short(strength.rank().corr(induction[strength.index].rank())),
        **{f"head_{place}": f"L{row[0]:.0f}H{row[1]:.0f}" for place, row in enumerate(rows[:6])},
        **{f"matching_{place}": short(row[2]) for place, row in enumerate(rows[:6])},
        **idle,
    }


def comparison() -> Numbers:
    """Other tools, as they were on a day."""
    told = tomllib.loads((FIGURES.parent / ".docs/comparison.toml").read_text(encoding="utf-8"))
    tools = told["tools"]
    named = [f"[{tool['name']}]({tool['url']})" for tool in tools]
    short = [
        [tool["task"], f"{name} {tool['version']}", tool["heads"]] for name, tool in zip(named, tools, strict=True)
    ]
    details = [
        [name, *(tool[part] for part in ("models", "beyond", "lacks"))] for name, tool in zip(named, tools, strict=True)
    ]
    return {
        "looked": told["looked"],
        "tools": grid([f"to ... ({told['looked']})", "there is", "of heads it has"], short),
        "details": grid(["", "models", "beyond heads, or in another way", "lacks"], details),
        "seen": "; ".join(f"{tool['name']} by its {tool['seen']}" for tool in tools),
    }


def readme() -> Numbers:
    """Numbers of the README."""
    sys.path.insert(0, str(FIGURES / "engineering/families"))
    import architectures

    results = architectures.areas(table("engineering/families/families"))
    scores, effects, relevant, pruned, removal = map(str, (results == "yes").sum())
    types = (
        (FIGURES / "engineering/families/families.md")
        .read_text(encoding="utf-8")
        .split(f"| all | {len(results)} | ")[1]
    )
    rows = [role_rows(name, "repeated").loc[(heads, "induction")] for name, heads in
            (("smollm2", "all 5"), ("gemma3", "all 3"))]  # fmt: skip
    for row in rows:
        holds("sets of induction heads pass, and lose nothing", row["verdict"].startswith("its role is what it does"))
        holds("under exact induction they lose nothing", row["role_pattern.high"] < 0)
    shares = table("questions/role-tests/shares.csv").set_index(["role", "model"])["verdict"]
    passing = shares[shares == "its role is what it does"].index
    holds("their previous-token heads pass on repeats", len(shares.loc["previous token on repeats"]) == sum(
        role == "previous token on repeats" for role, _ in passing) == 2)  # fmt: skip
    holds("MPNet's heads and sets of sinks do not pass, nor is it shown of syntactic heads", not any(
        model == "MPNet base" or "sinks" in role or "syntactic" in role for role, model in passing))  # fmt: skip
    return {
        "models": str(len(results)),
        "types": types.split()[0],
        "scores": scores,
        "ablation": effects,
        "relevance": relevant,
        "pruning": pruned,
        "removal": removal,
        **{name: f"{row['removed']:.1f}" for name, row in zip(("smollm2", "gemma3"), rows, strict=True)},
        "tools": comparison()["tools"],
    }


def written() -> dict[Path, str]:
    """Return README.md and the pages with numbers, made of their templates and the tables: {path: text}."""
    known, texts = numbers() | {"readme": readme()}, {}
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    for path in sorted(TEMPLATES.rglob("*.md")):
        name = path.relative_to(TEMPLATES)
        text = environment.from_string(path.read_text(encoding="utf-8")).render(**known)
        if name.name == "README.md":
            texts[TEMPLATES.parent.parent / name] = text
        else:
            texts[TEMPLATES.parent / name] = (
                f"{text.rstrip()}\n\n<!-- Written from .docs/templates/{name}: change that. -->\n"
            )
    return texts


def p_of(p: float) -> str:
    """Return p in three digits."""
    return "< .001" if p < 0.001 else f"{p:.3f}"


def survival() -> Numbers:
    """Roles by chance: what survives, and what is left of the model."""
    sys.path.insert(0, str(FIGURES / "questions/survival"))
    try:
        from contrasts import contrasts
    finally:
        sys.path.pop(0)
    heads, models = table("questions/survival/heads.csv"), table("questions/survival/models.csv")
    found, assigned = contrasts(heads), models[models.arm == "assigned"]
    by_control = found[found.keep == 12].set_index(["role", "controls"])
    primary, far = by_control.xs("all", level="controls"), by_control.loc[("position", "3 to 5 away")]
    fewest = found[found.keep == 6].set_index(["role", "controls"]).loc[("position", "3 to 5 away")]
    count = heads.model.nunique()
    for role in ("position", "syntax"):
        holds(f"{role} survives more than its control", primary["p.holm"][role] < (0.001 if count == 4 else 0.05))
    holds("rare words do not", primary["p.holm"]["rare"] > 0.05)
    holds("a neighbour survives more than a place far away", min(far["difference.low"], fewest["difference.low"]) > 0)
    more = found[(found.keep == 24) & (found.role == "rare")].iloc[0]
    found["role"] = found.role.where(found.controls == "all", "position, control " + found.controls)
    rows = [
        [f"{row.keep} of 48", row.role, f"{row.survive:.2f}", f"{row.control:.2f}", f"{row.free:.2f}",
         interval(row, "difference", ".2f") if row.notna()["difference.low"] else f"{row.difference:.2f}",
         p_of(row["p.holm"]) if row.keep == 12 and row.controls == "all" else ""]
        for _, row in found.iterrows()
    ]  # fmt: skip
    left = {"all 48": "bleu", "18 with a role": "bleu[role]", "18 controls": "bleu[control]", "12 free": "bleu[free]"}
    pruned = {f"pruned to {size}": [f"bleu[{size} {seed}]" for seed in range(3)] for size in (24, 12, 6)}
    bleu = [f"{assigned[columns].to_numpy().mean():.1f}" for columns in (*left.values(), *pruned.values())]
    arm = heads.role.where(~heads.control, heads.role + ", control")
    order = [f"{role}{part}" for role in primary.index for part in ("", ", control")]
    costs = heads.groupby(arm)[["ablation", "importance"]].mean().loc[[*order, "free"]]
    heads["left"] = heads[[f"survival[12 {seed}]" for seed in range(3)]].mean(axis=1)
    patterns = table("questions/survival/patterns.csv").fillna("nan").set_index(["way", "control"])["adjacent"]
    syntax = heads[heads.role.eq("syntax") & ~heads.control].groupby("layer")["left"].mean()
    third = heads.groupby("model").importance.rank(pct=True) > 2 / 3
    high = heads[third].groupby(arm[third])["left"].agg(["mean", "size"]).query("size >= 5")
    said = ", ".join(f"{name} {row['mean']:.2f} ({row['size']:.0f} heads)" for name, row in high.iterrows())
    important = heads[third & heads.role.eq("position") & heads.control]["shift"].ne(0)
    last = assigned["loss[9]"] - assigned["loss[10]"]
    ordinary = models[models.arm == "ordinary"]
    return {
        "models": {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 12: "twelve"}.get(count, str(count)),
        "numbers": ",".join(map(str, sorted(heads.model.unique()))),
        **{role: f"{primary.survive[role]:.2f}" for role in primary.index},
        **{f"{role}_control": f"{primary.control[role]:.2f}" for role in primary.index},
        "rows": grid(["heads left", "role", "with the role", "control", "free", "role - control", "p"], rows),
        "more_rare": f"{more.survive:.2f} and {more.control:.2f}",
        "more_free": f"{more.free:.2f}",
        "permuted": f"{by_control.control['position', 'permuted']:.2f}",
        "near": f"{100 * patterns['head', 'nan']:.0f} %",
        "control_near": f"{100 * patterns['head', 'permuted']:.0f} %",
        "far": f"{far.control:.2f}",
        "far_less": interval(far, "difference", ".2f"),
        "far_less_6": interval(fewest, "difference", ".2f"),
        "layers": ", ".join(f"{share:.2f}" for share in syntax),
        "bleu": grid([*left, *pruned], [bleu]),
        "costs": grid(
            ["", "loss without it, nats", "importance"],
            [[name, f"{row.ablation:.3f}", f"{row.importance:.3f}"] for name, row in costs.iterrows()],
        ),
        "mediated": said,
        "far_important": f"{important.sum()} of {len(important)}",
        "ordinary": f"{ordinary.bleu.mean():.1f} BLEU ({len(ordinary)} trained)"
        if len(ordinary)
        else "not trained yet",
        "falling": f"{int((last > 0.01).sum())} of {count}",
        "fall": f"{last.max():.3f}".lstrip("0"),
    }


def benchmarks() -> Numbers:
    """Time and memory: grids of the one table, medians over rounds with their ranges."""
    rows = table("engineering/benchmarks/benchmarks.csv")

    def cell(row: pd.Series, digits: int) -> str:
        if pd.isna(row.low) or row.rounds == 1:
            return f"{row.value:.{digits}f}"
        return f"{row.value:.{digits}f} [{row.low:.{digits}f}, {row.high:.{digits}f}]"

    def shown(job: str, what: str, ways: dict[str, str], digits: int = 2) -> str:
        part = rows[(rows.job == job) & (rows.what == what)]
        lines = []
        for (model, tokens), group in part.groupby(["model", "tokens"], sort=False):
            cells = {row.way: cell(row, digits) for _, row in group.iterrows()}
            lines.append([f"{model}, {tokens:,}", *(cells.get(way, "") for way in ways)])
        return grid(["model, tokens of a text", *ways.values()], lines)

    def of(job: str, what: str) -> pd.DataFrame:
        return rows[(rows.job == job) & (rows.what == what)]

    scores = {"headroles": "five scores", "all default scores, intervals": "all default scores"}
    peers = {"TransformerLens": "TransformerLens", "nnsight": "nnsight"}
    others = []
    for job in ("gradient x output", "half of the heads"):
        part = rows[(rows.job == job) & rows.what.str.startswith("forwards")]
        for (model, way), group in part.groupby(["model", "way"], sort=False):
            others.append([job, model, way, cell(group.iloc[0], 2)])
    first, precision = of("once per model", "first call more than the second, s"), rows[rows.job == "precision=1.1"]
    shares = ["time / all examples", "share of examples of a head"]
    saved = {
        texts: [cell(group[group.what == what].iloc[0], 2) for what in shares]
        for texts, group in precision.groupby("texts")
    }
    peaks = rows[rows.what == "peak above the model, MiB"]
    forwards = (
        rows[rows.what == "forwards"].set_index(["job", "model", "texts", "tokens"])["value"].map("{:.1f}".format)
    )
    memory = [
        [*key[:2], f"{key[2]:,} x {key[3]:,}", f"{value:,.0f}", forwards.get(key, "")]
        for key, value in peaks.set_index(["job", "model", "texts", "tokens"])["value"].items()
    ]
    failed = rows[rows.value.isna()].drop_duplicates(["way", "what", "job"])
    ours = failed.what.str.contains("written for the plain loop")  # our script asks it of no other tool
    failed = failed[~ours]
    failures = (f"{row.way} does not do {row.job} of {row.model}: {row.what}." for _, row in failed.iterrows())
    report, gates = (
        rows[rows.job == "report"].set_index("what")["value"],
        of("train gates", "step with gates / without"),
    )
    return {
        "by": rows.by.iloc[0],
        "score": shown("score", "per token / plain loop", {"forward, sdpa": "forward", **scores, **peers}),
        "fixed": shown("score", "fixed, s", scores | {"plain loop": "plain loop"}, 3),
        "once": ", ".join(f"{row.model} {cell(row, 2)} s" for _, row in first.iterrows()),
        "ablate": shown("ablate", "forwards a head", {"headroles": "headroles", "plain loop": "plain loop", **peers}),
        "precision": grid(["texts", *shares], [[f"{texts:,}", *cells] for texts, cells in saved.items()]),
        "others": grid(["job", "model", "by", "forwards"], others),
        "apart": f"{rows[rows.what.str.startswith('largest difference')].value.max():.0e}",
        "failed": " ".join(failures),
        "gates": cell(gates.iloc[0], 3),
        "memory": grid(["job", "model", "texts x tokens", "MiB", "time / forward of the body"], memory),
        "report": f"{report['report, s']:.1f} s and {report['report, MB']:.1f} MB",
    }


PAGES: tuple[Callable[[], Numbers], ...] = (
    *(quality, roles, role_tests, real_models, classifier, cache_budgets, relevance, ablation, pruning, survival),
    *(alignment, whisper, retrieval, correlations, training, strategies, roles_and_survival, paper_size, papers),
    *(circuits, benchmarks, comparison),
)


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
