"""Printing of results: tables as the registry of tables declares them, and the special output of commands."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headroles as hr
from headroles.cli.console import Columns, cells, record, row_names, say, show_columns
from headroles.cli.options import command_line
from headroles.tables.columns import ENDS, PRINTED, REPEATED, Column, Printed, without_ends
from headroles.tables.declared import costs, harm, negated, quality, signature_of
from headroles.tables.frame import LEVELS, examples, examples_of, fields, measured_on, parsed_head, provenance, spelled

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel

    from headroles.ablation.example_stats import ExampleStats
    from headroles.cli.options import Call

FEW = 100  # sentences, below which the intervals of shares were not tried by simulation
SURE = 0.01  # p below which an effect is counted
STRONGEST = 5  # heads of a role that are named
FIRST = 10  # tested heads that have a sentence


def print_table(
    table: pd.DataFrame,
    printed: Printed,
    words: Mapping[str, object],
    *,
    rows: Columns | None = None,
    whole: pd.DataFrame | None = None,
) -> None:
    """Print a table as declared, with `words` in its title and `rows` by heading; `whole` is the table for --json."""
    star = str(table.columns[0])
    headings = {name.replace("*", star): heading for name, heading in printed.columns.items()}
    shown = table.rename(columns={"low": "value.low", "high": "value.high"})
    headings = headings or {name: name for name in without_ends(shown)}
    if column := printed.by.replace("*", star):
        shown = shown.loc[table[column].sort_values(ascending=False, kind="stable").index]
    shown = shown.head(printed.first or len(table))
    facts = {"rows": len(table), "shown": len(shown), "metric": Column.parse(star).metric}
    headings = {name: heading for name, heading in headings.items() if name in shown and shown[name].notna().any()}
    title = printed.title.format_map({**words, **facts})
    record().keep(table if whole is None else whole, title)
    columns = {heading: cells(shown, name) for name, heading in headings.items()}
    numeric = [heading for name, heading in headings.items() if shown[name].dtype.kind in "iuf"]
    show_columns({**(row_names(shown.index) if rows is None else rows), **columns}, title, numeric)
    if {f"{star}.{test}" for test in ("p", "holm", "bh")} <= {*table} and table[f"{star}.p"].notna().any():
        below, holm, bh = ((table[f"{star}.{test}"] < SURE).sum() for test in ("p", "holm", "bh"))
        say(f"{below} of {len(table)} have p < {SURE:g}; {holm} after Holm, {bh} after Benjamini-Hochberg")
    if printed.note:
        say(printed.note.format_map({**words, **facts}))


def words_of(call: Call) -> dict[str, Any]:
    """Return the words for titles: what was typed, the arguments, and which values of the metric are better."""
    metric = str(call.given.get("metric"))
    better = {1: f"{metric}: larger is better", -1: f"{metric}: smaller is better"}.get(quality(metric).better, metric)
    return {**call.given, **call.arguments, "better": better, "where": _where(call)}


def show_scores(call: Call) -> None:
    """Print the conservation of relevance, the heads that have roles, and what was measured and left out."""
    from headroles.analysis.role_rules import assignable, held
    from headroles.scores.lrp import totals

    study = call.arguments["study"]
    for name in (name for name in study.names() if name.startswith("conservation-")):
        parts = ", ".join(f"{part} {100 * share:z.1f} %" for part, share in totals(study.load(name)).items())
        say(f"relevance by {name.removeprefix('conservation-')}, shares of the target: {parts}")
    if assignable(call.result):
        show_roles(hr.roles(study), study.folder)
    else:
        _show_largest(call.result)
    show_measured(call.result)
    record().left_out.update(hr.scores.left_out(call.result, call.arguments.get("scores")))
    if works := evaluated(call, ("loss", "agreement"), call.arguments["corpus"][:2]):
        record().words["works"] = works.metric.name
        if study.has("roles") and len(held(study.load("roles"))):
            record().words["tests"] = works.metric.name


def _show_largest(table: pd.DataFrame) -> None:
    """Print the heads with the largest values of the first scores, for scores without a role."""
    columns = [name for name in without_ends(table) if not Column.parse(name).suffix and table[name].notna().any()][:3]
    if columns:
        objective = dict(fields(provenance(table, columns[0]))).get("objective")
        measured = f"{columns[0]}{f' of the objective {objective}' * (objective is not None)}"
        scores = table[[part for name in columns for end in ENDS if (part := f"{name}{end}") in table]]
        print_table(scores, PRINTED["heads"], {"measured": measured})


def evaluated(call: Call, metrics: Sequence[str], corpus: hr.Corpus) -> ExampleStats | None:
    """Return the statistics of the first metric that the model and the corpus have."""
    from headroles.ablation.metrics import as_metric
    from headroles.ablation.sweep import Sweep
    from headroles.models.head_model import HeadModel

    for metric in metrics:
        with suppress(ValueError):  # it says what the metric needs
            handle = HeadModel.of(call.arguments["model"], call.arguments["tokenizer"], allow_sharded=True)
            return Sweep(handle, corpus, as_metric(metric), variants_at_once=1).run([])
    return None


def show_chance(call: Call) -> None:
    """Say that a classifier is hardly better than the most frequent label for every example."""
    table, corpus = call.result, call.arguments.get("held_out", call.arguments.get("corpus"))
    if "accuracy" in table.index:
        value, low = table.loc["accuracy", ["value", "low"]]
    elif "held_out accuracy" in table:  # after the last epoch of training
        value, low = table.iloc[-1][["held_out accuracy", "held_out accuracy.low"]]
    else:
        return
    labels = Counter(label for sentence in corpus or () for label in getattr(sentence, "labels", (sentence.label,)))
    chance = max(labels.values()) / labels.total()
    if min(value, low) <= chance:
        say(f"accuracy is near chance ({chance:.2f})")


def show_measured(table: pd.DataFrame, what: str = "measured of") -> None:
    """Print which scores or roles a table has, and on what they were measured."""
    columns = {name: Column.parse(name) for name in table if table.get(f"{name}.value", table[name]).notna().any()}
    scores = {name: column.name for name, column in columns.items() if column.suffix != "words"}  # 0: nothing measured
    where = measured_on((score, examples(signature_of(table, name))) for name, score in scores.items())
    facts = dict(fields(provenance(table, str(table.columns[0]))))
    say(f"{what} {len(table)} heads of {facts.get('model')}: {where}")


def show_roles(assigned: pd.DataFrame, study: Path | None = None, *, every: bool = False) -> None:
    """Print a row for each role, its strongest heads or all; sinks, which may be most of the heads, are last."""
    from headroles.analysis.role_rules import held, prefer_nosink_roles
    from headroles.plots.labels import nearest_role

    shown = prefer_nosink_roles(assigned)
    holders = _holders(shown)
    unsure = holders.loc[holders["stability"].notna(), "unsure"]
    count = dict(fields(next(iter(shown.attrs.get("signatures", {}).values()), ""))).get("sentences", FEW)
    facts = [f"{held(shown).groupby(LEVELS).ngroups} of {len(shown)} heads have a role"]
    facts += [f"{(~unsure).sum()} of their {len(unsure)} roles are stable"] * (len(unsure) > 0)
    facts += [f"{count} sentence{'s are' if count != '1' else ' is'} few"] * (int(count) < FEW)
    title = "; ".join(facts)
    record().keep(assigned, title)
    record().words["families"] = ",".join(dict.fromkeys(holders["family"]))
    if holders.empty:
        say("; ".join([*facts, *filter(None, [nearest_role(shown)])]))
        return
    columns = _strongest(holders, ["kind"] * (shown.index.unique("kind").size > 1), every=every)
    show_columns(columns, title, ["heads"])
    notes = ["a head and its score"]
    notes += ["?: kept in fewer than 95 % of resamples"] * any(text.endswith("?") for text in holders["text"])
    notes += ["without the sink, but for sinks"] * (len(shown.columns) < len(assigned.columns))
    if study is not None and any(" more" in text for text in columns["strongest"]):
        notes.append(f"headroles roles {shlex.quote(str(study))} --all lists all heads")
    say("; ".join(notes))


def _holders(assigned: pd.DataFrame) -> pd.DataFrame:
    """List the heads of each role, strongest first, sinks last; a head is listed as one sink, with the larger score."""
    from headroles.analysis.role_rules import SINKS, listed, names

    rows = listed(assigned)
    rows["place"] = rows["role"].map(names(assigned).index)
    rows["sink"] = rows["family"].isin(SINKS)
    rows["role"] = rows["text"]
    one_kind = assigned.index.unique("kind").size < 2
    heads = [spelled(*head, one_kind=one_kind) for head in rows[LEVELS].itertuples(index=False)]
    parts = zip(heads, rows["value"], rows["unsure"], strict=True)
    rows["text"] = [f"{head} {value:.2f}{'?' * unsure}" for head, value, unsure in parts]
    rows = rows.sort_values("value", ascending=False, kind="stable").drop_duplicates([*LEVELS, "role"])
    return rows.sort_values(["sink", "place"], kind="stable")


def _strongest(holders: pd.DataFrame, kinds: list[str], *, every: bool) -> dict[str, list[str]]:
    """Return a row for each role (of a kind): number of heads, all or the five strongest (one sink), and the rest."""
    rows = []
    for key, part in holders.groupby([*kinds, "role"], sort=False):
        *kind, role = map(str, key)
        texts = part["text"].tolist()
        shown = texts if every else texts[: 1 if part["sink"].any() else STRONGEST]
        rest = [f"and {len(texts) - len(shown)} more"] * (len(texts) > len(shown))
        rows.append([*kind, _spoken(role), str(len(texts)), ", ".join([*shown, *rest])])
    names = (*kinds, "role", "heads", "strongest")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _spoken(role: str) -> str:
    """Return the display name of a role, with the relation of a syntactic one in words."""
    from headroles.plots.labels import relation_label

    column = Column.parse(role)
    if column.name == "syntactic" and len(column.words) == 2:
        return f"{column.name}: {relation_label(*column.words)}"
    return role


def show_ablation(call: Call) -> None:
    """Print the metric of the intact model, the largest effects, and the best heads of a layer kept alone."""
    from headroles.ablation.effects import table_name
    from headroles.ablation.example_stats import ExampleStats
    from headroles.ablation.significance import metric_with_interval
    from headroles.ablation.sweep import replacement_name

    given, study, table = call.given, call.arguments["study"], call.result
    metric, unit, exact = given["metric"], given["unit"], given["precision"] == 1
    name = table_name(metric, unit, given["replacement"], precision=given["precision"])
    star, where = str(table.columns[0]), _where(call)
    stats = ExampleStats.of(study.load(f"examples-{name}"), hr.ablation.metrics.as_metric(metric))
    intact = metric_with_interval(stats, n_resamples=given["n_resamples"])
    ends = "" if math.isnan(intact["low"]) else f" [{intact['low']:.3f}, {intact['high']:.3f}]"
    say(f"the intact model: {metric} {intact['value']:.3f}{ends} on {where}")
    what = "head" if unit == "all_but_one" else unit
    if not table[star].any():
        record().keep(table, f"no {what} changes it")
        say(f"no {what} changes it")
    else:
        holm = table[f"{star}.holm"]
        if holm.notna().any() and not (holm < SURE).any():
            say(f"no {what} is shown to differ from 0 on {where} (p < {SURE:g} after Holm)")
        print_table(shown := costs(table), PRINTED["ablation-"], {}, whole=table)
        say(f"{(gains := shown[star] < 0).sum()} costs are below 0 (better), {(gains & (holm < SURE)).sum()} surely")
    if (explained := f"{star}.explained") in table:
        say(f"the gradient explains {table[explained].median():.0%} of an effect's variance (median head)")
    record().words["related" if study.has("roles") else "unscored"] = str(study.folder)
    if unit != "all_but_one" or not exact:
        return
    for part, which in (("", ""), ("-halves", ", chosen on other examples")):
        best = f"best-{metric}-{replacement_name(given['replacement'])}{part}"
        if study.has(best):
            kept = study.load(best)
            rows = row_names(kept.astype({"head": int}).set_index("head", append=True).index)
            shown = negated(kept, ["effect"]) if harm(star, signature_of(table, star)) < 0 else kept
            words = {"which": f"the best head of each layer{which}"}
            print_table(shown, PRINTED["best-"], words, rows=rows, whole=kept)


def _where(call: Call) -> str:
    return examples_of(len(call.arguments["corpus"]), call.arguments["corpus"].name)


def show_areas(call: Call) -> None:
    """Print the mean heights of ablation curves."""
    name = "-".join(filter(None, ["areas", call.given["metric"], call.given["kind"]]))
    print_table(call.arguments["study"].load(name), PRINTED["areas-"], words_of(call))


def show_budget(call: Call) -> None:
    """Print the groups that keep their whole cache, the cost of streaming the others, and the exported files."""
    table, study = call.result, call.arguments["study"]
    kept = int(table["retrieval"].sum())
    print_table(table, PRINTED["budget-"], {"kept": kept})
    total, streaming = table["effect"].sum(), (table["effect"] * table["streaming"]).sum()
    say(f"{len(table) - kept} groups stream: their effects sum to {streaming:.3f} of {total:.3f} nats")
    if (form := call.given["export"]) is not None:
        files = hr.export_budget(table, study.folder / f"budget-{call.given['by']}-{form}", form)
        say(f"written: {', '.join(map(str, files))}")
    say(f"in Python: hr.BudgetedCache(model, hr.load_table('{study.path('budget-' + call.given['by'])}'))")


def show_tested(call: Call) -> None:
    """Print a sentence for each head with its verdict, then counts of verdicts and costs, of five heads alone."""
    import pandas as pd

    table = call.result.set_axis(call.result.index.set_levels(_spelled(call.result.index.levels[0]), level="heads"))
    heads, roles = (table.index.get_level_values(level) for level in ("heads", "role"))
    together = heads.str.startswith("all ")
    alone = table[~together].sort_values("removed", ascending=False, kind="stable")
    say(f"is its role what a head does? on {_where(call)}")
    show_measured(call.arguments["roles"], "roles looked for in")
    for (head, role), row in islice(alone.iterrows(), FIRST):
        say(f"{head}, {_spoken(role)}: {row['verdict']}; removed it costs {row['removed']:z.3g}")
    if len(alone) > FIRST:
        say(f"and {len(alone) - FIRST} more")
    shown = pd.DataFrame({"role": roles, "heads": (heads + " together").where(together, "")})
    shown["tokens"] = ["" if math.isnan(share) else f"{share:.0%}" for share in table["applies"]]
    shown["verdict"] = table["verdict"].to_numpy()
    counts = shown.groupby([*shown], sort=False).size().rename("count").reset_index()
    counts["heads"] = counts["heads"].where(counts["heads"] != "", counts["count"].astype(str))
    verdicts = counts.sort_values("role", kind="stable")
    show_columns({str(name): verdicts[name].tolist() for name in shown}, "heads of each verdict", ["tokens"])
    rows = pd.concat([alone.head(STRONGEST), table[together]])
    names = {"heads, role": ["\n".join(row) for row in rows.index]}
    print_table(rows, PRINTED["role-"], {}, rows=names, whole=call.result)


def _spelled(texts: Sequence[str]) -> list[str]:
    """Return heads written kind:layer:head as everywhere; other texts stay."""
    heads = {text: parsed_head(text) for text in texts if ":" in text}
    one_kind = len({kind for kind, *_ in heads.values()}) < 2
    shown = {text: spelled(str(kind), layer, head, one_kind=one_kind) for text, (kind, layer, head) in heads.items()}
    return [shown.get(text, text) for text in texts]


def show_assigned(call: Call) -> None:
    """Print the heads that have roles, and which roles pass a test."""
    show_roles(call.result, call.arguments["table"].folder, every=call.given["every"])
    if call.given["test"]:
        decisions = hr.analysis.role_decisions(call.result)
        print_table(decisions, Printed("heads above the threshold, and significantly so at 0.05"), {})
    show_measured(call.result, "roles looked for in")
    say(f"written: {call.arguments['table'].path('roles')}")


def show_related(call: Call) -> None:
    """Print the relations of roles, all outcomes alike, then the reasons for missing numbers."""
    table = call.result
    known = table[table["auc"].notna()].copy()
    lower = known["matters"] == "lower"  # printed alike: the larger, the more a head with the role matters
    known.loc[lower, ["auc", "auc.low", "auc.high"]] = 1 - known.loc[lower, ["auc", "auc.high", "auc.low"]].to_numpy()
    if len(known):
        print_table(known, PRINTED["relate"], {}, rows={}, whole=table)
        shown = known[known["holm"] < 0.05]
        sure = [f"{role} ({outcome})" for role, outcome in zip(shown["role"], shown["outcome"], strict=True)]
        count = f"{len(sure)} of {len(known)} relations have p < 0.05 after Holm"
        say(f"{count}{': ' * bool(sure)}{', '.join(sure)}")
    else:
        record().keep(table, PRINTED["relate"].title)
    for (role, note), rows in table[table["auc"].isna()].groupby(["role", "note"], sort=False):
        say(f"{role}: {note} ({len(rows)} outcome{'s' * (len(rows) > 1)})")


def show_report(call: Call) -> None:
    """Print which roles a second model gains and loses, and where the page is."""
    if call.given["compare"]:
        changes = hr.compare_models(*map(hr.Study, call.given["studies"]))
        for what in ("gained", "lost"):
            counts = changes[what].str.split(", ").explode().replace("", None).value_counts(sort=False)
            roles = ", ".join(f"{_spoken(str(role))} by {count}" for role, count in counts.items())
            say(f"roles {what} by heads of the second model: {roles or 'none'}")
    say(f"written: {call.result}")


def show_pruned(call: Call) -> None:
    """Print undecided gates, the metric before and after, the pruned heads and roles; save the model without them."""
    from headroles.ablation.significance import interval
    from headroles.analysis.role_rules import listed, prefer_nosink_roles
    from headroles.pruning.selection import undecided
    from headroles.reports.contents import lost_roles

    kept = call.result.iloc[:, 0]
    if (chance := f"{kept.name}.open") in call.result:
        say(f"{undecided(call.result[chance])} of {len(kept)} gates are undecided")
    if call.intact and (after := evaluated(call, [call.intact.metric.name], call.measured)):
        metric, given = call.intact.metric.name, call.given
        before, then = call.intact.resampled([call.intact.intact, after.intact])  # alike, so that the change is paired
        change, low, high = interval(then, call.intact.metric, len(call.measured), before=before)
        chose = "" if given["strategy"] == "random" else " (they chose the heads)"
        where = f"the {len(call.measured)} training examples{chose}"
        where = where if given["held_out"] is None else examples_of(len(call.measured), call.measured.name)
        values = f"{before[0]:.3f} before, {then[0]:.3f} after"
        say(f"{metric} on {where}: {values}, {change:+.3f} [{low:+.3f}, {high:+.3f}]")
        if given["output"] is not None and given["held_out"] is None:
            others = f"{shlex.quote(str(given['output']))} CORPUS{' TARGET' * bool(given['target'])}"
            say(f"measure on others with headroles evaluate {others} --metrics {metric} --study smaller-study")
    record().keep(call.result, "the heads that stay (1) and those that are pruned (0)")
    _show_heads("pruned", removed := kept.index[kept == 0], len(kept))
    if call.arguments["study"].has("roles"):
        rows = listed(prefer_nosink_roles(call.arguments["study"].load("roles")))
        heads_of = {str(role): {*part.set_index(LEVELS).index} for role, part in rows.groupby("family", sort=False)}
        say(f"pruned heads with a role: {(lost := lost_roles(heads_of, {*removed})) or 'none'}")
        if "induction" in lost and call.given["output"] is not None:
            where = f"{shlex.quote(str(call.given['output']))} {REPEATED}"
            say(f"text repeats little; where tokens repeat: headroles evaluate {where} --study repeated")
    if call.given["output"] is not None:
        _save(call, call.arguments["model"])


def show_removed(call: Call) -> None:
    """Print the removed heads, a line for each layer, and save the smaller model."""
    _show_heads("removed", call.heads.difference(hr.models.head_index(call.result), sort=False), len(call.heads))
    _save(call, call.result)


def show_exported(call: Call) -> None:
    """Print the file that other programs read, and its size."""
    say(f"written: {call.result}, {call.result.stat().st_size:,} bytes")


def _save(call: Call, model: PreTrainedModel) -> None:
    output, overwrite = call.given["output"], call.given["overwrite"]
    hr.save(model, call.tokenizer, output, overwrite=overwrite, command=command_line())
    say(f"written: {output}, {model.num_parameters():,} parameters; in Python: hr.load({str(output)!r})")


def _show_heads(what: str, heads: pd.MultiIndex, count: int) -> None:
    import pandas as pd

    names = pd.Series(row_names(heads)["head"], dtype=object)
    for _, rows in names.groupby([heads.get_level_values("kind"), heads.get_level_values("layer")], sort=False):
        say(f"{what}: {', '.join(rows)}")
    say(f"{len(heads)} of {count} heads are {what}")


def show_saved_sizes(call: Call) -> None:
    """Print where the models of a sparsity sweep are."""
    if call.given["output"] is not None:
        saved = [str(call.given["output"] / str(count)) for count in call.result["heads"][1:]]
        say(f"written: {', '.join(saved)}; in Python: hr.load({saved[-1]!r})")
        record().words["smallest"] = saved[-1]


def show_reproduced(call: Call) -> None:
    """Print the verdicts, or the table of a single artefact; raise RuntimeError if none was made."""
    from headroles.papers.verdicts import NO_COST, NO_VALUE

    rows, given = call.result, call.given
    place = (given["study"] or Path(next(iter(given["folders"]), "study"))) / "papers"
    made, title = rows["made"].any(), "do the papers' claims hold here?"
    if made and len(rows) == 1:
        record().keep(rows, title)
        paper, artefact = rows.loc[0, ["paper", "artefact"]]
        file = place / paper / f"{artefact}.parquet"
        table, facts = hr.load_table(file), json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        say(f"the claim: {facts['claim']}")
        say(f"does it hold here? {facts['answer']}: {facts['why']}")
        if NO_COST in facts["why"]:
            ends, metric = f"--study {shlex.quote(str(place.parent))}", table["all.metric"].iloc[0]
            say(f"the cost of all heads: first headroles score MODEL CORPUS --scores importance {ends}")
            say(f"then headroles ablation-curve MODEL CORPUS --by importance --metric {metric} {ends}")
        if NO_VALUE in facts["why"]:
            say(f"an untrained model is measured by headroles reproduce {paper} {artefact} --model MODEL --data FOLDER")
        print_table(table, Printed(f"{paper} {artefact}, {{shown}} of {{rows}} rows", first=10), {})
    else:
        headings = {"artefact": "artefact", "answer": "holds"} | ({"why": "why"} if made else {})
        headings = ({"paper": "paper"} if rows["paper"].nunique() > 1 else {}) | headings
        print_table(rows.sort_values("made", ascending=False, kind="stable"), Printed(title, headings), {})
    if not made:
        names = (rows["artefact"] + " of " + rows["paper"]).groupby(rows["why"], sort=False).agg(", ".join)
        raise RuntimeError(f"nothing was made: {'; '.join(f'{names[why]}: {why}' for why in names.index)}")
    say(f"written: {place}, {rows['made'].sum()} of {len(rows)} artefacts")


def show_demo(call: Call) -> None:
    """Print the heads that have roles, what was measured and left out, and where the page is."""
    from headroles.reports.demo import OF_TRANSLATOR, PAGE

    translation = call.given["translation"]
    study = hr.Study(call.given["study"] or f"headroles-demo{'-translation' if translation else ''}")
    record().words["study"] = str(study.folder)
    show_roles(call.result, study.folder)
    show_measured(scores := study.load("heads"))
    record().left_out.update(hr.scores.left_out(scores, OF_TRANSLATOR if translation else None))
    maps = ", ".join(str(path) for path in sorted(study.folder.glob("roles-*.png")))
    say(f"the map of heads is {maps}; the page is {study.folder / PAGE}")


def show_parsed(call: Call) -> None:
    """Print how many sentences were parsed, and the file of their trees."""
    from headroles.data.stanza_parser import trees_path

    given = call.given
    written = given["output"] or trees_path(given["source"], language=given["language"], models=given["models"])
    record().words["output"] = str(written)
    say(f"{len(call.result)} sentences parsed; their CoNLL-U is {written}")


def show_answers(call: Call) -> None:
    """Print a line for each check, with its deviation, then each reason once."""
    table, title = call.result, f"{type(call.arguments['model']).__name__}: which checks hold"
    record().keep(table, title)
    columns = {"check": [*table.index], "area": [*table["area"]], "holds": [*table["holds"]]}
    columns["off"] = ["" if math.isnan(number) else f"{number:.1g}" for number in table["off"]]
    show_columns(columns, title, ["off"])
    for why, rows in table[table["why"] != ""].groupby("why", sort=False):
        say(f"{', '.join(rows.index)}: {why}")
