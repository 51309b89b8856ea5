"""The studies of specialised heads: `python figures/specialists/make.py COMMAND ...`; with `--help` what each makes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import bilingual
import evaluation
import matplotlib.pyplot as plt
import overview
import picture
import shares
import sst2
import survivors
import typer
from arms import ArmName, Recipe, specialise
from matplotlib.axes import Axes
from pruning import KEEP, prune_arm
from replication import prepared
from several_models import TESTED, again, pool_models

import headroles as hr
from headroles.papers.verdicts import metric_label

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
ONE_ENCODER = "All models start from one pretrained encoder: they share errors."
SIZES = ", ".join(field.name for field in fields(Recipe))


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="Folder that figures/papers/replicate prepares.")],
    output: Annotated[Path, typer.Option(help="Folder for the models and for unfinished training.")],
    arm: Annotated[
        ArmName,
        typer.Option(help="Encoder at first: A, B untrained, C, C-shuffled a masked language model, E pretrained."),
    ] = "C",
    seed: int = 0,
    texts: Annotated[Path | None, typer.Option(help="More sentences for the masked language model.")] = None,
    probe: Annotated[list[Path], typer.Option(help="CoNLL-U on which heads are scored during training.")] = [],
    limit: Annotated[int, typer.Option(help="Sentences of each such file.")] = 300,
    size: Annotated[list[str], typer.Option(help=f"A field of the recipe, as width=256: {SIZES}.")] = [],
    without: Annotated[str, typer.Option(help="Encoder heads to do without, as enc-self:0:2,enc-self:1:0.")] = "",
    study: Annotated[Path | None, typer.Option(help="Folder for a copy of the table of heads.")] = None,
) -> None:
    """Train a translator from an untrained, masked-language-model or pretrained encoder; resumes if stopped."""
    parts = prepared(data)
    table = specialise(
        output,
        parts,
        arm,
        seed=seed,
        recipe=recipe_of(size),
        texts=None if texts is None else hr.read(texts),
        probed=[parts.parsed[:limit], *(hr.read(path, limit=limit) for path in probe)],
        without=without.split(",") if without else (),
    )
    if study is not None:
        hr.save_table(table, study / f"probes-{arm}-{seed}.parquet")
    print(table[(table["step"] == table["step"].iloc[-1]) & (table["rank"] == 0)].to_string(index=False))


@app.command()
def prune(
    study: Path,
    model: Path,
    data: Annotated[Path, typer.Argument(help="Folder that figures/papers/replicate prepares.")],
    keep: Annotated[list[int], typer.Option(help="Encoder heads left.")] = list(KEEP),
    controls: Annotated[list[int], typer.Option(help="Heads left of controls of equal size.")] = [],
    gate_seeds: int = 3,
    rate: float = 3e-4,
    pairs: int = 48_000,
    warmup: int = 100,
    metric: str = "bleu",
    roles: Annotated[bool, typer.Option("--roles", help="Score the heads that are left, too.")] = False,
    resamples: int = 1000,
) -> None:
    """Score the heads of a trained translator, prune its encoder by gates of several seeds, beside controls."""
    found = prune_arm(
        study,
        model,
        prepared(data),
        keep=keep,
        chosen=controls,
        gate_seeds=gate_seeds,
        rate=rate,
        pairs=pairs,
        warmup=warmup,
        metric=metric,
        roles=roles,
        n_resamples=resamples,
    )
    print(found.to_string())


@app.command()
def untrained(model: Path, output: Path, seed: int = 0) -> None:
    """Save an untrained model of the shape of a trained one."""
    from headroles.models import loading

    loaded, tokenizer = bilingual.load(model)
    hr.save(loading.untrained(loaded, seed=seed), tokenizer, output)


@app.command()
def pool(
    folders: Annotated[list[Path], typer.Argument(help="Folders of `prune`, one per model.")],
    tested: Annotated[list[int], typer.Option(help="Heads left of the primary outcome.")] = list(TESTED),
    one_encoder: Annotated[bool, typer.Option("--one-encoder", help=ONE_ENCODER)] = False,
    study: Path = Path("study"),
) -> None:
    """Test over several pruned models whether roles predict which heads survive, and compare their controls."""
    pooled = pool_models(folders, tested=tested, one_encoder=one_encoder, study=study)
    for name, table in pooled._asdict().items():
        if table is not None and name not in ("heads", "controls"):
            print(name, table.to_string(index=False), sep="\n")
    label = metric_label(pooled.sizes)
    save(picture.specialists(*pooled[:4], label=label), study / "specialists.png")
    if pooled.changes is not None and pooled.changes[["before", "after"]].to_numpy().any():
        save(hr.plots.role_changes(pooled.changes), study / "role-changes-pooled.png")


@app.command()
def retest(
    studies: Annotated[list[Path], typer.Argument(help="Studies of `pool`.")],
    tested: Annotated[list[int], typer.Option(help="Heads left of the primary outcome.")] = list(TESTED),
    one_encoder: Annotated[bool, typer.Option("--one-encoder", help=ONE_ENCODER)] = False,
) -> None:
    """Test again over the models of studies of `pool`, from the tables that they keep."""
    for study in studies:
        table = again(study, tested=tested, one_encoder=one_encoder)
        print(study, table[table["analysis"] == "primary"].to_string(index=False), sep="\n")
        if (study / "specialists.png").is_file():
            heads, sizes = (hr.load_table(study / f"pooled-{name}.parquet") for name in ("heads", "sizes"))
            path = study / "pooled-controls.parquet"
            controls = hr.load_table(path) if path.is_file() else None
            axes = picture.specialists(heads, table, sizes, controls, label=metric_label(sizes))
            save(axes, study / "specialists.png")


@app.command()
def probes(
    tables: Annotated[list[str], typer.Argument(help="NAME=TABLE of `train`, such as C=probes-C-0.parquet.")],
    output: Annotated[Path, typer.Option()],
) -> None:
    """Draw the largest shares of a head at a neighbour through the training of translators."""
    named = (text.split("=") for text in tables)
    save(picture.probes({name: hr.load_table(path) for name, path in named}), output)


def save(axes: list[Axes], path: Path) -> None:
    """Save the figure of some axes, and close it."""
    figure = axes[0].get_figure(root=True)
    assert figure is not None
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def recipe_of(texts: list[str]) -> Recipe:
    """Return the recipe with fields such as width=256; raise ValueError for another form."""
    kinds: dict[str, type] = {field.name: type(field.default) for field in fields(Recipe)}
    given = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in kinds or not value:
            raise ValueError(f"no field of the recipe: got {text!r}; expected NAME=NUMBER, NAME one of {SIZES}")
        given[name] = bool(int(value)) if kinds[name] is bool else kinds[name](value)
    return Recipe(**given)


of_tables = (survivors.survivors, overview.overview, overview.together, shares.shares)
for run in (*of_tables, evaluation.bleu, evaluation.scratch, sst2.sst2):
    app.command()(run)


if __name__ == "__main__":
    app()
