"""Printing of what each command computed: heads with roles, effects, curves, sizes, verdicts."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

import headroles as hr
from headroles.cli.console import (
    grid,
    height,
    record,
    say,
    show,
    show_grid,
    show_numbers,
    show_rows,
    show_table,
)
from headroles.cli.options import command_line
from headroles.plots.labels import harmful, relation_label
from headroles.tables.columns import Column, without_ends
from headroles.tables.declared import harm, quality, signature_of
from headroles.tables.frame import LEVELS, fields, provenance

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headroles.cli.options import Call

FEW = 100  # sentences, below which the intervals of shares were not tried by simulation
ROWS = 10  # of the table of an artefact
LINES = 24  # of the roles: with what follows them, they fit a terminal of 30
ABOUT_ROLES = "a head and its score; ?: kept in fewer than 95 % of resamples"


def show_scores(call: Call) -> None:
    """Print the conservation of relevance, the heads that have roles, and what was measured and left out."""
    from headroles.analysis.role_rules import assignable, held
    from headroles.scores.lrp import totals

    study = call.arguments["study"]
    for name in (name for name in study.names() if name.startswith("conservation-")):
        parts = ", ".join(f"{part} {100 * share:z.1f} %" for part, share in totals(study.load(name)).items())
        say(f"relevance by {name.removeprefix('conservation-')}, shares of the target: {parts}")
    if assignable(call.result):
        show_roles(hr.roles(study))
    else:
        _show_largest(call.result)
    show_measured(call.result, call.arguments.get("scores"))
    if (metric := _metric_that_works(call)) is not None:
        record().words["works"] = metric
        if study.has("roles") and len(held(study.load("roles"))):
            record().words["tests"] = metric


def _show_largest(table: pd.DataFrame) -> None:
    """Print the ten heads with the largest value of the first score, for scores without a role."""
    columns = [name for name in without_ends(table) if not Column.parse(name).suffix and table[name].notna().any()][:3]
    if columns:
        most = table.nlargest(10, columns[0])
        ends = [f"{name}{end}" for name in columns for end in ("", ".low", ".high") if f"{name}{end}" in table]
        heads = [f"{kind} layer {layer} head {head}" for kind, layer, head in most.index]
        of = dict(fields(provenance(table, columns[0]))).get("objective")
        title = f"{columns[0]}{f' of the objective {of}' * (of is not None)}, heads with the largest"
        show_numbers(most[ends], title, label="head", rows=heads)


def _metric_that_works(call: Call) -> str | None:
    """Return the loss if the model and the corpus have one, else agreement with the intact model; None without both."""
    corpus = call.arguments["corpus"]
    few = hr.Corpus(corpus.name, tuple(islice(corpus, 2)))
    for metric in ("loss", "agreement"):
        try:
            hr.evaluate(call.arguments["model"], call.arguments["tokenizer"], few, [metric], n_resamples=0)
        except ValueError:  # says what the metric needs
            continue
        return metric
    return None


def show_roles(assigned: pd.DataFrame, lines: int = LINES) -> None:
    """Print the roles, a row each, with their strongest heads; sinks, which most heads may be, are last."""
    from headroles.analysis.role_rules import behind_sink, held

    shown = behind_sink(assigned)
    title = f"{held(shown).groupby(LEVELS).ngroups} of {len(shown)} heads have a role"
    holders = _holders(shown)
    sure = _how_sure(shown, holders["stability"].dropna())
    record().keep(assigned, "; ".join([title, *sure]))
    title = "\n".join([title, *filter(None, ["; ".join(sure)])])
    kinds = ["kind"] * (shown.index.unique("kind").size > 1)
    about = ABOUT_ROLES + ("; without the sink, but for sinks" if len(shown.columns) < len(assigned.columns) else "")
    for columns, count in (([*kinds, "role"], 5), ([*kinds, "family"], 5), ([*kinds, "family"], 1), (["family"], 1)):
        rows = _strongest(holders, columns, count)
        table = grid(rows, title, caption=about, right=["heads"], whole=len(columns))
        if height(table) <= lines:
            break
    show(table)


def _how_sure(assigned: pd.DataFrame, stability: pd.Series[float]) -> list[str]:
    """Say how many of the roles are stable, where there are resamples, and that few sentences are few."""
    from headroles.analysis.role_rules import STABLE, held

    facts = dict(fields(next(iter(assigned.attrs.get("signatures", {}).values()), "")))
    count = facts.get("sentences", "")
    several = ", of which a head may have several," * (len(stability) > held(assigned).groupby(LEVELS).ngroups)
    says = [f"{(stability >= STABLE).sum()} of {len(stability)} roles{several} are stable"] if len(stability) else []
    few = bool(count) and int(count) < FEW
    return says + [f"{count} sentence{'s are' if count != '1' else ' is'} few"] * few


def _holders(assigned: pd.DataFrame) -> pd.DataFrame:
    """List the heads of each role, the strongest first, the sinks last; a head is one sink, of the larger score."""
    from headroles.analysis.role_rules import STABLE, held, names

    rows = held(assigned)
    rows["family"] = rows["role"].map(lambda role: Column.parse(role).name)
    rows["sink"] = rows["family"].isin(("sink", "sink-norm"))
    rows["place"] = rows["role"].map(names(assigned).index)
    rows["role"] = rows["role"].where(~rows["sink"], rows["family"])  # the first token is often a special one
    form = "{kind}:{layer}:{head}" if assigned.index.unique("kind").size > 1 else "L{layer}H{head}"
    rows["text"] = [
        f"{form.format(kind=row.kind, layer=row.layer, head=row.head)} {row.value:.2f}{'?' * bool(unstable)}"
        for row, unstable in zip(rows.itertuples(), rows["stability"] < STABLE, strict=True)
    ]
    rows = rows.sort_values("value", ascending=False, kind="stable").drop_duplicates([*LEVELS, "role"])
    return rows.sort_values(["sink", "place"], kind="stable")


def _strongest(holders: pd.DataFrame, columns: list[str], count: int) -> pd.DataFrame:
    """A row for each value of the columns: how many heads, the strongest of them, of sinks one, and how many more."""
    rows = []
    for key, part in holders.groupby(columns, sort=False):
        heads = part.sort_values("value", ascending=False, kind="stable").drop_duplicates(LEVELS)["text"]
        shown = heads.head(1 if part["sink"].any() else count)
        rest = [f"and {len(heads) - len(shown)} more"] * (len(heads) > len(shown))
        key = (*key[:-1], _spoken(str(key[-1])))
        rows.append((*key, str(len(heads)), ", ".join([*shown, *rest])))
    return pd.DataFrame(rows, columns=[*columns[:-1], "role", "heads", "strongest"])


def _spoken(role: str) -> str:
    """A role as it is called everywhere: the relation of a syntactic one in words."""
    column = Column.parse(role)
    return (
        f"{column.name}: {relation_label(*column.words)}"
        if column.name == "syntactic" and len(column.words) == 2
        else role
    )


def show_report(call: Call) -> None:
    """Print which roles a second model gains and loses, and where the page is."""
    if call.given["compare"]:
        changes = hr.compare_models(*map(hr.Study, call.given["studies"]))
        for what in ("gained", "lost"):
            counts = changes[what].str.split(", ").explode().replace("", None).value_counts(sort=False)
            roles = ", ".join(f"{_spoken(str(role))} by {count}" for role, count in counts.items())
            say(f"roles {what} by heads of the second model: {roles or 'none'}")
    say(f"written: {call.result}")


def show_measured(table: pd.DataFrame, chosen: Sequence[object] | None = None) -> None:
    """Print what a score table measures, and keep for the end what was left out and why."""
    columns = [Column.parse(name) for name in table if table[name].notna().any()]
    scores = dict.fromkeys(column.name for column in columns if column.suffix != "words")  # 0 words: nothing measured
    facts = dict(fields(provenance(table, str(table.columns[0]))))
    on = f"{facts.get('sentences', '?')} sentences of {facts.get('corpus')}"
    say(f"measured: {', '.join(scores)} of {len(table)} heads of {facts.get('model')} on {on}")
    record().left_out.update(hr.scores.left_out(table, chosen))  # type: ignore[arg-type]


def show_ablation(call: Call) -> None:
    """Print the score of the intact model, the largest effects, how many have a small p, and the best heads."""
    from headroles.ablation.evaluation import worth
    from headroles.ablation.example_stats import ExampleStats
    from headroles.ablation.units import replacement_name, table_name

    given, study = call.given, call.arguments["study"]
    metric, unit, exact = given["metric"], given["unit"], given["precision"] == 1
    name = table_name(metric, unit, given["replacement"], precision=given["precision"])
    stats = ExampleStats.of(study.load(f"examples-{name}"), hr.ablation.metrics.metric(metric))
    intact = worth(stats, n_resamples=given["n_resamples"])
    ends = "" if math.isnan(intact["low"]) else f" [{intact['low']:.3f}, {intact['high']:.3f}]"
    say(f"the intact model: {metric} {intact['value']:.3f}{ends}")
    _show_effects(call.result)
    record().words["related" if study.has("roles") else "unscored"] = str(study.folder)
    for best in (f"best-{metric}-{replacement_name(given['replacement'])}{part}" for part in ("", "-halves")):
        if unit == "all_but_one" and exact and study.has(best):
            how = "best head by the other half" if "halves" in best else "best head"
            _show_best(study.load(best), f"{how}, kept alone: {_harmful(call.result)}")


def _show_effects(table: pd.DataFrame) -> None:
    name = str(table.columns[0])
    most = table.loc[table[name].abs().sort_values(ascending=False, kind="stable").index[:10]]
    most.columns = ["change", "change.low", "change.high", "p", "Holm", *most.columns[5:]]
    heads = [f"{kind} layer {layer} head {head}" for kind, layer, head in most.index]
    shown = most[["change", "change.low", "change.high", "p", "Holm"]]
    show_table(shown, _title_of_effects(table), label="head", rows=heads, whole=table)
    for part, label in (("p", "p"), ("holm", "p after Holm"), ("bh", "p after Benjamini-Hochberg")):
        say(f"{(table[f'{name}.{part}'] < 0.01).sum()} of {len(table)} heads with {label} < 0.01")
    if f"{name}.examples" in table:
        whole = int(dict(fields(provenance(table, name)))["examples"])
        say(f"heads were ablated on {table[f'{name}.examples'].mean() / whole:.0%} of the {whole} examples")
    if f"{name}.explained" in table:
        say(f"the gradient explains {table[f'{name}.explained'].median():.0%} of an effect's variance (median head)")


def _title_of_effects(table: pd.DataFrame) -> str:
    """Say which metric changes, and whether more of it is worse."""
    name = str(table.columns[0])
    return f"the largest of {len(table)} effects on {Column.parse(name).metric}: {_harmful(table)}"


def _harmful(table: pd.DataFrame) -> str:
    """Say which side of 0 is harm in the first column of a table of effects."""
    name = str(table.columns[0])
    return harmful(more=harm(name, signature_of(table, name)) > 0)


def _show_best(table: pd.DataFrame, title: str) -> None:
    """Print the best head to keep alone in each layer."""
    parts = {"effect": "change", "effect.low": "change.low", "effect.high": "change.high", "effect.p": "p"}
    shown = table.rename(columns={**parts, "effect.holm": "Holm"})[[*parts.values(), "Holm"]]
    heads = [
        f"{kind} layer {layer}: head {head}" for (kind, layer), head in zip(table.index, table["head"], strict=True)
    ]
    show_table(shown, title, label="kept", rows=heads, whole=table)


def show_areas(call: Call) -> None:
    """Print the mean heights of ablation curves."""
    kind = call.given["kind"]
    name = "-".join(["areas", call.given["metric"], *([kind] if kind else [])])
    show_table(call.arguments["study"].load(name), f"mean height of the curve ({_better(call.given['metric'])})")


def _better(metric: str) -> str:
    """Say which values of a metric are better."""
    return {1: f"{metric}: larger is better", -1: f"{metric}: smaller is better"}.get(quality(metric).better, metric)


COSTS = (  # of role tests that are printed, two tables that fit 80 characters
    ("what it costs; above 0 is harm", ("removed", "role_pattern", "explained")),
    ("costs that its own pattern has to be below", ("removed_local", "mean", "wrong")),
)


def show_budget(call: Call) -> None:
    """Print the groups that keep their whole cache, what streaming of the others costs, and the exported files."""
    table, study = call.result, call.arguments["study"]
    kept = table[table["retrieval"] == 1]
    shown = kept.nlargest(10, "effect")[["effect", "effect.low", "effect.high", "effect.p", "effect.holm"]]
    shown = shown.rename(columns={"effect.p": "p", "effect.holm": "Holm"})
    rows = [f"layer {layer} group {group}" for _, layer, group in shown.index]
    title = f"{len(kept)} of {len(table)} groups keep their whole cache; effect of streaming on the loss"
    title += f": {harmful(more=True)}"
    show_table(shown, title, label="group", rows=rows, whole=table)
    all_of_them, streaming = table["effect"].sum(), (table["effect"] * table["streaming"]).sum()
    say(f"{len(table) - len(kept)} groups stream: their effects sum to {streaming:.3f} of {all_of_them:.3f} nats")
    if (form := call.given["export"]) is not None:
        files = hr.export_budget(table, study.folder / f"budget-{call.given['by']}-{form}", form)
        say(f"written: {', '.join(map(str, files))}")
    say(f"in Python: hr.BudgetedCache(model, hr.load_table('{study.path('budget-' + call.given['by'])}'))")


def show_tested(call: Call) -> None:
    """Print the verdicts of role tests, and the costs of heads together and of five heads alone."""
    table = call.result
    record().keep(table, f"role tests by {call.given['metric']}")
    shown = table.index.to_frame(index=False).assign(
        tokens=_shares(table["applies"]), verdict=table["verdict"].to_numpy()
    )
    is_set = shown["heads"].str.startswith("all ")
    alone = shown[~is_set].groupby(["role", "tokens", "verdict"], sort=False).size().rename("heads").reset_index()
    together = shown[is_set].assign(heads=shown["heads"] + " together")
    verdicts = pd.concat([alone, together])[["role", "tokens", "heads", "verdict"]].sort_values("role", kind="stable")
    show_grid(verdicts.astype(str), "is its role what a head does?", right=["tokens", "heads"], whole=3)
    rows = pd.concat([table[~is_set.to_numpy()].nlargest(5, "removed"), table[is_set.to_numpy()]])
    for title, names in COSTS:
        show_numbers(
            rows[[f"{name}{end}" for name in names for end in ("", ".low", ".high")]],
            title,
            label="heads, role",
            rows=["\n".join(row) for row in rows.index],
            tall=True,
        )
    say(
        "tokens: share of them to which the pattern applies (at the others the head attends as by itself); removed: "
        "cost of removal; own: of the pattern of the role; explained: what the own pattern saves of the cost of "
        "removal; there: of removal at these tokens alone; mean: of the mean output; wrong: of patterns as sharp "
        "elsewhere"
    )


def _shares(values: pd.Series[float]) -> list[str]:
    return ["" if math.isnan(value) else f"{value:.0%}" for value in values]


def show_assigned(call: Call) -> None:
    """Print the heads that have roles, and which roles pass a test."""
    show_roles(call.result)
    if call.given["test"]:
        decisions = hr.analysis.role_decisions(call.result)
        show_rows(decisions.reset_index(), "heads above the threshold, and significantly so at 0.05")
    say(f"written: {call.arguments['table'].path('roles')}")


def show_related(call: Call) -> None:
    """Print the relations of roles, a table for each outcome, then the reasons of those without numbers."""
    table = call.result
    known = table[table["auc"].notna()]
    record().keep(table, "auc: chance of the larger value with the role than without; p: within layers")
    for (outcome, which), rows in known.groupby(["outcome", "matters"], sort=False):
        shown = rows[["auc", "auc.low", "auc.high", "p", "holm"]].copy()
        if which == "lower":  # all outcomes read alike: the larger, the more a head with the role matters
            shown[["auc", "auc.low", "auc.high"]] = 1 - shown[["auc", "auc.high", "auc.low"]].to_numpy()
        above = "has larger values" if which == "unknown" else "matters more"
        show_numbers(shown, f"{outcome}: above 0.5 the role {above}", label="role", rows=list(rows["role"]))
    if len(known):
        say(_related(known))
        say("auc: chance that a head with the role matters more, or has larger values, than without; p: within layers")
        say(f"{(known['holm'] < 0.05).sum()} of {len(known)} relations have p < 0.05 within layers after Holm")
    for (role, note), rows in table[table["auc"].isna()].groupby(["role", "note"], sort=False):
        say(f"{role}: {note} ({len(rows)} outcome{'s' * (len(rows) > 1)})")


def _related(known: pd.DataFrame) -> str:
    """Say in a sentence which roles were shown to matter more, or less."""
    shown = known[known["holm"] < 0.05]
    sure = [f"{role} ({outcome})" for role, outcome in zip(shown["role"], shown["outcome"], strict=True)]
    return f"different from the other heads of their layers, after Holm: {', '.join(sure) or 'no role'}"


def show_pruned(call: Call) -> None:
    """Print the heads that are pruned, and save the model without them."""
    kept = call.result.iloc[:, 0]
    record().keep(call.result, "the heads that stay (1) and those that are pruned (0)")
    _show_heads("pruned", kept.index[kept == 0], len(kept))
    if call.given["output"] is not None:
        _save(call, call.arguments["model"])


def show_removed(call: Call) -> None:
    """Print the removed heads, a line for each layer, and save the smaller model."""
    left = hr.models.head_index(call.result)
    _show_heads("removed", call.heads.difference(left, sort=False), len(call.heads))
    _save(call, call.result)


def _save(call: Call, model: PreTrainedModel) -> None:
    output, overwrite = call.given["output"], call.given["overwrite"]
    hr.save(model, call.tokenizer, output, overwrite=overwrite, command=command_line())
    say(f"written: {output}, {model.num_parameters():,} parameters; in Python headroles.load loads it")


def _show_heads(what: str, heads: pd.MultiIndex, count: int) -> None:
    layers: dict[tuple[str, int], list[str]] = {}
    for kind, layer, head in heads:
        layers.setdefault((kind, layer), []).append(str(head))
    for (kind, layer), numbers in layers.items():
        say(f"{what}: {kind} layer {layer}, head{'s' * (len(numbers) > 1)} {', '.join(numbers)}")
    say(f"{len(heads)} of {count} heads are {what}")


def show_sweep(call: Call) -> None:
    """Print the sizes of a sparsity sweep, by number of heads, and where the models are."""
    table, given = call.result, call.given
    names = [f"{table['heads'].iloc[0]}, control", *map(str, table["heads"][1:])]
    shown = table[[name for name in table if str(name).startswith(("value", "low", "high", "change", "undecided"))]]
    where = f"on {given['held_out'].name}, and the change against the control"
    title = f"{given['strategy']}: {_better(given['metric'])}; {where}"
    show_table(shown, title, label="heads", rows=names, whole=table)
    say("control: the model with all its heads, after the same training as the others")
    if given["output"] is not None:
        saved = [str(given["output"] / str(count)) for count in table["heads"][1:]]
        say(f"written: {', '.join(saved)}; in Python headroles.load loads them")
        record().following.append(f"headroles score {shlex.quote(saved[-1])} CORPUS --study smaller-study")


def show_comparison(call: Call) -> None:
    """Print the compared pruning strategies, by strategy and number of heads."""
    table, given = call.result, call.given
    names = [f"{row.strategy}, {row.heads} heads{', retrained' if row.tuned else ''}" for row in table.itertuples()]
    shown = table.drop(columns=["strategy", "heads", "tuned", "seeds.sd"])
    title = f"{_better(given['metric'])}; on {given['held_out'].name}, mean of {given['seeds']} seeds"
    show_table(shown, title, label="choice", rows=names, whole=table)


def show_reproduced(call: Call) -> None:
    """Print the verdicts, or the table of a single artefact; raise RuntimeError if none was made."""
    rows, given = call.result, call.given
    place = (given["study"] or Path(next(iter(given["folders"]), "study"))) / "papers"
    made, title = rows["made"].any(), "do the papers' claims hold here?"
    record().keep(rows, title)
    if made and len(rows) == 1:
        table = place / rows["paper"][0] / f"{rows['artefact'][0]}.parquet"
        _show_verdict(json.loads(table.with_suffix(".json").read_text(encoding="utf-8")))
        show_rows(hr.load_table(table), " ".join(rows.loc[0, ["paper", "artefact"]]), first=ROWS)
    else:
        shown = rows[["paper", "artefact", "answer", "why"]].rename(columns={"answer": "holds"})
        show_grid(shown if made else shown.drop(columns="why"), title, whole=2)
    say(f"written: {place}, {rows['made'].sum()} of {len(rows)} artefacts")
    if not made:
        reasons: dict[str, list[str]] = {}
        for row in rows.itertuples():
            reasons.setdefault(str(row.why), []).append(f"{row.artefact} of {row.paper}")
        lacking = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        raise RuntimeError(f"nothing was made: {lacking}")


def _show_verdict(facts: dict[str, Any]) -> None:
    """Print the claim of an artefact, its verdict, and the commands of tables that are missing."""
    from headroles.papers.bench import NO_VALUE
    from headroles.papers.michel2019.effects import UNKNOWN

    say(f"the claim: {facts['claim']}")
    say(f"does it hold here? {facts['answer']}: {facts['why']}")
    if UNKNOWN in facts["why"]:
        say("that of all heads is measured by headroles ablation-curve MODEL CORPUS --study STUDY")
    if NO_VALUE in facts["why"]:
        say(
            f"an untrained model is measured by headroles reproduce {facts['paper']} {facts['artefact']} --model MODEL "
            f"--data FOLDER"
        )


def show_demo(call: Call) -> None:
    """Print the heads that have roles, what was measured and left out, the page, and what was found."""
    from headroles.reports.demo import OF_TRANSLATOR, PAGE, found

    translation = call.given["translation"]
    study = hr.Study(call.given["study"] or f"headroles-demo{'-translation' if translation else ''}")
    record().words["study"] = str(study.folder)
    show_roles(call.result, lines=12)
    show_measured(study.load("heads"), OF_TRANSLATOR if translation else None)
    maps = ", ".join(str(path) for path in sorted(study.folder.glob("roles-*.png")))
    say(
        f"the map of heads is {maps}, the page with all {len(list(study.folder.glob('*.png')))} figures "
        f"{study.folder / PAGE}"
    )
    record().ends += found(call.result)


def show_parsed(call: Call) -> None:
    """Print how many sentences were parsed, and the file of their trees."""
    from headroles.data.stanza_parser import trees_path

    given = call.given
    written = given["output"] or trees_path(given["source"], language=given["language"], models=given["models"])
    record().words["output"] = str(written)
    say(f"{len(call.result)} sentences parsed; their CoNLL-U is {written}")


def show_answers(call: Call) -> None:
    """Print the results of checks, a line each, with their deviations, then each reason once."""
    table, title = call.result, f"{type(call.arguments['model']).__name__}: which checks hold"
    record().keep(table, title)
    off = ["" if math.isnan(number) else f"{number:.1g}" for number in table["off"]]
    show_grid(table[["area", "holds"]].assign(off=off).rename_axis("check").reset_index(), title, right=["off"])
    for why, rows in table[table["why"] != ""].groupby("why", sort=False):
        say(f"{', '.join(rows.index)}: {why}")
