"""The table of architectures in words: what works with each, and why not where it does not (no torch)."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

AREAS = ("scores", "ablation", "relevance", "pruning", "shrinking")
WORST = ("no", "refused", "yes", "not asked")  # an area is what the worst of its laws is
START, END = "<!-- families: written by `headroles architectures --readme README.md` -->", "<!-- end of families -->"
LONGEST = 160  # letters of a reason
_LINEAR = "layers of linear attention, or of none, have no rules"
NOTES = {  # what lies behind what a law answers
    "big_bird": "what is loaded puts other attention into itself at its first text",
    "bigbird_pegasus": "what is loaded puts other attention into itself at its first text",
    **dict.fromkeys(("jamba", "kimi_linear", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), _LINEAR),
    "minimax": "it gives out numbers of its linear layers as if they were attention weights",
    "mobilebert": "it reads the token after each, so that of a padded text the last one sees padding",
    "paligemma": "it looks ahead in the text it is given, not in what it writes",
    "phimoe": "the gradient of its router is no gradient, by design",
    "swin": "it gives out the weights of one layer of each stage, watching shows all",
}


def areas(table: pd.DataFrame) -> pd.DataFrame:
    """For each architecture what holds of each area: "yes", "no", "refused" or "not asked"."""
    ranked = table.assign(rank=table["holds"].map(WORST.index)).reset_index()
    worst = ranked.groupby(["group", "name", "of"], sort=False)["rank"].min().map(WORST.__getitem__)
    return worst.unstack("of")[list(AREAS)]


def written(table: pd.DataFrame) -> str:
    """Markdown: how many architectures have what, and those that do not have all, each with its reason."""
    found = areas(table)
    return "\n".join([*_counts(table, found), "", *_whole(found), "", *_partly(table, found)])


def into(readme: Path, table: pd.DataFrame) -> None:
    """Put the table between its marks in a README. Raises ValueError where they are not there."""
    text = readme.read_text(encoding="utf-8")
    if START not in text or END not in text:
        raise ValueError(f"{readme} has no place for the table: put {START!r} and {END!r} where it shall stand")
    before, after = text.split(START)[0], text.split(END)[1]
    readme.write_text(f"{before}{START}\n{written(table)}\n{END}{after}", encoding="utf-8")


def _counts(table: pd.DataFrame, found: pd.DataFrame) -> list[str]:
    lines = [f"| | architectures | types | {' | '.join(AREAS)} |", "|---|---|---|" + "---|" * len(AREAS)]
    for group in [*found.index.unique("group"), None]:
        rows, own = (found, table) if group is None else (found.loc[[group]], table[table["group"] == group])
        good = " | ".join(str((rows[area] == "yes").sum()) for area in AREAS)
        lines.append(f"| {group or 'all'} | {len(rows)} | {own['architecture'].nunique()} | {good} |")
    return lines


def _whole(found: pd.DataFrame) -> list[str]:
    good = found[found.isin(["yes", "not asked"]).all(axis=1)]
    names = {group: ", ".join(good.loc[group].index) for group in good.index.unique("group")}
    return [f"- All that is asked of them works, {group}: {listed}." for group, listed in names.items()]


def _partly(table: pd.DataFrame, found: pd.DataFrame) -> list[str]:
    partly = found[found.isin(["no", "refused"]).any(axis=1)].droplevel("group")
    lines = [f"<details><summary>The {len(partly)} of which something is wrong or refused, and why</summary>", ""]
    lines += ["| not all works | " + " | ".join(AREAS) + " | why |", "|---|" + "---|" * (len(AREAS) + 1)]
    for name in partly.index:
        own = table.loc[name]
        said = dict.fromkeys(_short(one) for one in own["why"][own["holds"].isin(["no", "refused"])])
        why = "; ".join([*([NOTES[name]] if name in NOTES else []), *said])
        cells = " | ".join("" if one == "not asked" else one for one in partly.loc[name])
        lines.append(f"| {name} | {cells} | {why} |")
    return [*lines, "", "</details>"]


def _short(why: str) -> str:
    """A reason without what follows from it, in one cell."""
    text = re.sub(r"^heads cannot be removed from \w+; mask them instead: ", "", why).replace("|", "/")
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " ..."
