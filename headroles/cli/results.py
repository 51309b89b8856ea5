"""Printing of what each command computed: heads with roles, effects, curves, sizes, verdicts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import headroles as hr
from headroles.cli.arguments import typed
from headroles.cli.console import list_figures, say, show_grid, show_rows, show_table
from headroles.cli.record import record
from headroles.tables.columns import Column
from headroles.tables.frame import LEVELS, fields, provenance

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel

    from headroles.cli.options import Call


def show_scores(call: Call) -> None:
    """Print the conservation of relevance, the heads that have roles, and what was measured and left out."""
    from headroles.analysis.role_rules import assignable
    from headroles.scores.lrp import totals

    study = call.arguments["study"]
    for name in (name for name in study.names() if name.startswith("conservation-")):
        parts = ", ".join(f"{part} {100 * share:.1f} %" for part, share in totals(study.load(name)).items())
        say(f"relevance by {name.removeprefix('conservation-')}, shares of the target: {parts}")
    if assignable(study.load("heads")):
        show_roles(hr.roles(study))
    show_measured(call.result, call.arguments.get("scores"))


def show_roles(assigned: pd.DataFrame) -> None:
    """Print the heads that have roles, a line each: the role, its score, its stability."""
    from headroles.analysis.role_rules import held

    title = f"{held(assigned).groupby(['kind', 'layer', 'head']).ngroups} of {len(assigned)} heads have a role"
    record().keep(assigned, title)
    rows = held(assigned)
    families = rows["role"].map(lambda role: Column.parse(role).name)
    sinks = rows.assign(family=families)[families.isin(("sink", "sink-norm"))].sort_values("value")
    double = sinks.duplicated([*LEVELS, "family"], keep="last")  # the first token is often a special one: listed once
    rows = rows.drop(sinks.index[double])
    sure = rows["stability"].map(" ({:.2f})".format).where(rows["stability"].notna(), "")
    rows["text"] = rows["role"] + rows["value"].map(" {:.2f}".format) + sure
    lines = rows.groupby(LEVELS, sort=False)["text"].agg(", ".join).reset_index()
    rows = lines.rename(columns={"text": "roles"}).astype(str)
    show_grid(rows, title, caption="role, its score, its stability", right=["layer", "head"])


def show_measured(table: pd.DataFrame, chosen: Sequence[object] | None = None) -> None:
    """Print what a score table measures, and keep for the end what was left out and why."""
    scores = dict.fromkeys(Column.parse(name).name for name in table if table[name].notna().any())
    facts = dict(fields(provenance(table, str(table.columns[0]))))
    on = f"{facts.get('sentences', '?')} sentences of {facts.get('corpus')}"
    say(f"measured: {', '.join(scores)} of {len(table)} heads of {facts.get('model')} on {on}")
    record().left_out.update(hr.scores.left_out(table, chosen))  # type: ignore[arg-type]


def show_ablation(call: Call) -> None:
    """Print the score of the intact model, the largest effects, how many have a small p, and the best heads."""
    from headroles.ablation.evaluation import worth
    from headroles.ablation.example_stats import ExampleStats
    from headroles.ablation.units import on_disk, table_name

    given, study = call.given, call.arguments["study"]
    metric, unit, exact = given["metric"], given["unit"], not given["early"] and given["precision"] == 1
    name = table_name(metric, unit, given["replacement"], early=given["early"], precision=given["precision"])
    stats = ExampleStats.of(study.load(f"examples-{name}"), hr.ablation.metrics.metric(metric))
    intact = worth(stats, n_resamples=given["n_resamples"])
    ends = "" if math.isnan(intact["low"]) else f" [{intact['low']:.3f}, {intact['high']:.3f}]"
    say(f"the intact model: {metric} {intact['value']:.3f}{ends}")
    _show_effects(call.result)
    for best in (f"best-{metric}-{on_disk(given['replacement'])}{part}" for part in ("", "-halves")):
        if unit == "all_but_one" and exact and study.has(best):
            _show_best(study.load(best), "chosen on one half, measured on the other" if "halves" in best else "")


def _show_effects(table: pd.DataFrame) -> None:
    name = str(table.columns[0])
    most = table.loc[table[name].abs().sort_values(ascending=False, kind="stable").index[:10]]
    most.columns = ["change", "change.low", "change.high", "p", "Holm", "BH", *most.columns[6:]]
    heads = [f"{kind} layer {layer} head {head}" for kind, layer, head in most.index]
    shown = most[["change", "change.low", "change.high", "p", "Holm", "BH"]]
    show_table(shown, f"the largest of {len(table)} effects", label="head", rows=heads, whole=table)
    for part, label in (("p", "p"), ("holm", "p after Holm"), ("bh", "p after Benjamini-Hochberg")):
        say(f"{(table[f'{name}.{part}'] < 0.01).sum()} of {len(table)} heads with {label} < 0.01")
    if f"{name}.examples" in table:
        whole = int(dict(fields(provenance(table, name)))["examples"])
        say(f"heads were ablated on {table[f'{name}.examples'].mean() / whole:.0%} of the {whole} examples")
    if f"{name}.explained" in table:
        say(f"the gradient explains {table[f'{name}.explained'].median():.0%} of an effect's variance (median head)")


def _show_best(table: pd.DataFrame, how: str) -> None:
    """Print the best head to keep alone in each layer."""
    parts = {"effect": "change", "effect.low": "change.low", "effect.high": "change.high", "effect.p": "p"}
    shown = table.rename(columns={**parts, "effect.holm": "Holm"})[[*parts.values(), "Holm"]]
    heads = [
        f"{kind} layer {layer}: head {head}" for (kind, layer), head in zip(table.index, table["head"], strict=True)
    ]
    show_table(shown, f"the best head to keep alone{f', {how}' if how else ''}", label="kept", rows=heads, whole=table)


def show_areas(call: Call) -> None:
    """Print the mean heights of ablation curves."""
    kind = call.given["kind"]
    name = "-".join(["areas", call.given["metric"], *([kind] if kind else [])])
    show_table(call.arguments["study"].load(name), "mean height of the curve")


def show_assigned(call: Call) -> None:
    """Print the heads that have roles, and which roles pass a test."""
    show_roles(call.result)
    if call.given["test"]:
        decisions = hr.analysis.role_decisions(call.result)
        show_rows(decisions.reset_index(), "heads above the threshold, and significantly so at 0.05")
    say(f"written: {call.arguments['table'].path('roles')}")


def show_related(call: Call) -> None:
    """Print the relations of roles and outcomes, then the reasons of those without numbers."""
    table = call.result
    known = table[table["auc"].notna()]
    names = [f"{row.role}: {row.outcome}" for row in known.itertuples()]
    title = "auc: larger with the role than without; p: within layers"
    if names:
        shown = known[["auc", "auc.low", "auc.high", "p", "holm"]]
        show_table(shown, title, label="role: outcome", rows=names, whole=table)
        say(f"{(known['holm'] < 0.05).sum()} of {len(known)} relations have p < 0.05 within layers after Holm")
    for (role, note), rows in table[table["auc"].isna()].groupby(["role", "note"], sort=False):
        say(f"{role}: {note} ({len(rows)} outcomes)")


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
    hr.save(model, call.tokenizer, output, overwrite=overwrite, command=typed())
    say(f"written: {output}, {model.num_parameters():,} parameters; headroles.load loads it")


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
    title = f"{given['strategy']}: {given['metric']} on {given['held_out'].name}, and the change against the control"
    show_table(shown, title, label="heads", rows=names, whole=table)
    say("control: the model with all its heads, after the same training as the others")
    if given["output"] is not None:
        saved = [str(given["output"] / str(count)) for count in table["heads"][1:]]
        say(f"written: {', '.join(saved)}; headroles.load loads them")
        record().following.append(f"headroles score {shlex.quote(saved[-1])} CORPUS --study smaller-study")


def show_comparison(call: Call) -> None:
    """Print the compared pruning strategies, by strategy and number of heads."""
    table, given = call.result, call.given
    names = [f"{row.strategy}, {row.heads} heads{', retrained' if row.tuned else ''}" for row in table.itertuples()]
    shown = table.drop(columns=["strategy", "heads", "tuned", "seeds.sd"])
    title = f"{given['metric']} on {given['held_out'].name}, mean of {given['seeds']} seeds"
    show_table(shown, title, label="choice", rows=names, whole=table)


def show_reproductions(call: Call) -> None:
    """Print verdicts, and the table of a single artefact; raise RuntimeError, with the reasons, if none was made."""
    reasons: dict[str, None] = {}
    made = False
    for title, study, paper, artefact, rows in call.result:
        if title:
            say(title)
        table = study / "papers" / str(paper) / f"{artefact}.parquet"
        if artefact is not None and table.is_file():
            show_rows(hr.load_table(table), f"{paper} {artefact}")
        title = "do the papers' claims hold here?"
        record().keep(rows, title)
        shown = rows[["paper", "artefact", "answer", "why", "controls"]]
        show_grid(shown.set_axis(["paper", "artefact", "holds", "why", "negative controls"], axis=1), title, whole=2)
        say(f"written: {study / 'papers'}, {rows['made'].sum()} of {len(rows)} artefacts")
        made = made or bool(rows["made"].any())
        reasons |= {f"{row.artefact} of {row.paper}: {row.why}": None for row in rows.itertuples()}
    if not made:
        raise RuntimeError(f"nothing was made: {'; '.join(reasons)}")


def show_replicated(call: Call) -> None:
    """Print the figures of a replication."""
    list_figures(sorted(call.given["study"].glob("*.png")), call.given["study"])


def show_demo(call: Call) -> None:
    """Print the heads that have roles, the figures, and what was measured and left out."""
    from headroles.reports.demo import OF_TRANSLATOR

    translation = call.given["translation"]
    study = hr.Study(call.given["study"] or f"headroles-demo{'-translation' if translation else ''}")
    record().words["study"] = str(study.folder)
    show_roles(call.result)
    list_figures(sorted(study.folder.glob("*.png")), study.folder)
    show_measured(study.load("heads"), OF_TRANSLATOR if translation else None)


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
    show_grid(table[["of", "holds"]].assign(off=off).rename_axis("check").reset_index(), title, right=["off"])
    for why, rows in table[table["why"] != ""].groupby("why", sort=False):
        say(f"{', '.join(rows.index)}: {why}")
