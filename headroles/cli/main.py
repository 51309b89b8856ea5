"""The command line: each subcommand parses its arguments, makes one public call and prints what it wrote."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from headroles import _distributed
from headroles.cli.ablate import (
    Devices,
    Dtype,
    Overwrite,
    Replace,
    ablate,
    ablation_curve,
    agreement,
    compare,
    relate,
    train,
)
from headroles.cli.arguments import assignment, head_of, opened, scores_of, study_of
from headroles.cli.check import Submodel, architectures, check_model
from headroles.cli.console import list_figures, say, show_roles
from headroles.cli.papers import prepare, replicate, reproduce, specialise
from headroles.cli.prune import compare_pruning, dynamics, efficiency, prune, remove_heads, weight_change

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Analyse, ablate and prune the attention heads of Hugging Face models.",
)
Model = Annotated[str, typer.Argument(help="Hub id or local folder of a Hugging Face model with its tokenizer.")]
Folder = Annotated[Path, typer.Argument(help="Study folder with tables, to which results are added.")]


@app.command()
def parse(
    text: Annotated[Path, typer.Argument(help="Text file (.gz too), one sentence per line.")],
    output: Annotated[Path | None, typer.Option(help="CoNLL-U file for the trees.")] = None,
    language: Annotated[str, typer.Option(help="Stanza's code of the language.")] = "en",
    models: Annotated[Path | None, typer.Option(help="Folder of Stanza models; by default Stanza's own.")] = None,
    download: Annotated[
        Literal["missing", "never"] | None, typer.Option(help="Whether to download missing Stanza models.")
    ] = None,
) -> None:
    """Parse every sentence of a text by Stanza and save the trees as CoNLL-U beside the text."""
    from headroles.data.stanza_parser import parse as run

    corpus = run(text, language=language, models=models, download=download, output=output)
    where = f"in {output}" if output else f"beside {text}"
    say(f"{len(corpus)} sentences parsed; their CoNLL-U is {where}")


@app.command()
def score(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus: CoNLL-U (trees), text, parallel or labelled TSV; .gz too.")],
    target: Annotated[
        Path | None, typer.Argument(help="Translations of the corpus, line by line or as CoNLL-U.")
    ] = None,
    study: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("study"),
    scores: Annotated[str | None, typer.Option(help="Scores, separated by commas; by default all that apply.")] = None,
    rules: Annotated[str, typer.Option(help="Rule sets of the score relevance, separated by commas.")] = "cp",
    limit: Annotated[int | None, typer.Option(help="Number of first sentences to read; by default all.", min=1)] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Read the corpus in parts during scoring, for files of any length.")
    ] = False,
    reference: Annotated[
        Path | None, typer.Option(help="Corpus of token counts; by default the scored corpus.")
    ] = None,
    n_resamples: Annotated[
        int, typer.Option("--resamples", help="Number of bootstrap resamples of sentences.", min=0)
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    max_tokens: Annotated[
        int, typer.Option(help="Largest number of tokens in a batch, padding included.", min=1)
    ] = 4096,
    overwrite: Overwrite = False,
    submodel: Submodel = None,
    device: Devices = None,
    dtype: Dtype = None,
) -> None:
    """Score every attention head of a model on a corpus, assign roles and draw the figures."""
    from headroles.analysis.role_rules import assignable
    from headroles.data.readers import read
    from headroles.data.streaming import StreamingCorpus
    from headroles.experiments.score_study import assign_roles, balances, draw
    from headroles.scores import score as run

    folder = study_of(study, overwrite=overwrite)
    sentences = StreamingCorpus(corpus, target, limit=limit) if stream else read(corpus, target, limit=limit)
    counted = None if reference is None else read(reference)
    loaded, tokenizer = opened(model, device, submodel=submodel, dtype=dtype)
    run(
        loaded,
        tokenizer,
        sentences,
        None if scores is None else scores_of(scores, rules),
        n_resamples=n_resamples,
        seed=seed,
        max_tokens=max_tokens,
        reference=counted,
        study=folder,
    )
    for name, shares in balances(folder).items():
        parts = ", ".join(f"{part} {100 * share:.1f} %" for part, share in shares.items())
        say(f"relevance by {name}, shares of the target: {parts}")
    if assignable(folder.load("heads")):
        show_roles(assign_roles(folder))
    list_figures(draw(folder), study)


@app.command()
def roles(
    study: Folder,
    threshold: Annotated[
        list[str] | None, typer.Option(help="Threshold of a role, such as positional=0.8; repeatable.")
    ] = None,
) -> None:
    """Assign roles to the heads of a study by its scores, and print the heads that have any."""
    from headroles.experiments.score_study import assign_roles
    from headroles.tables.study import Study

    folder = Study(study)
    show_roles(assign_roles(folder, thresholds=dict(map(assignment, threshold or []))))
    say(f"written: {folder.path('roles')}")


@app.command()
def plot(study: Folder) -> None:
    """Draw every figure that the tables of a study allow."""
    from headroles.experiments.score_study import draw
    from headroles.tables.study import Study

    list_figures(draw(Study(study)), study)


@app.command()
def attention(
    model: Model,
    sentence: Annotated[str, typer.Argument(help="Sentence.")],
    head: Annotated[str, typer.Argument(help="Head as kind:layer:head, such as enc-self:0:2.")],
    output: Annotated[Path, typer.Option(help="Picture to write (.png, .pdf, .svg).")] = Path("attention.png"),
    overwrite: Replace = False,
    submodel: Submodel = None,
) -> None:
    """Draw the attention of one head on one sentence."""
    from headroles import plots, scores
    from headroles.models import loading
    from headroles.plots import gallery
    from headroles.tables import files

    asked = head_of(head)
    files.check_writable(output.parent, "folder")
    loaded, tokenizer = loading.load(model, submodel=submodel)
    of = loading.revision(loaded)
    files.check_ours(output, of, overwrite=overwrite)
    axes = plots.attention(scores.attention_matrix(loaded, tokenizer, sentence, asked))
    axes.set_title(head)
    gallery.save(axes, output, of=of)
    say(f"written: {output}")


@app.command()
def attention_examples(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus of example sentences: CoNLL-U or text; .gz too.")],
    target: Annotated[
        Path | None, typer.Argument(help="Translations of the corpus, line by line or as CoNLL-U.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Number of first sentences.", min=1)] = 3,
    study: Annotated[Path, typer.Option(help="Folder for the table.")] = Path("study"),
    overwrite: Overwrite = False,
    device: Devices = None,
) -> None:
    """Save the attention of every head on a few example sentences, for the report."""
    from headroles.data.readers import read
    from headroles.scores.examples import attention_examples as run

    folder = study_of(study, overwrite=overwrite)
    sentences = read(corpus, target, limit=limit)
    loaded, tokenizer = opened(model, device)
    table = run(loaded, tokenizer, sentences, limit=limit, study=folder)
    count = table["sentence"].nunique()
    say(f"attention of {len(table) // count} heads on {count} sentences is in {folder.path('attention')}")


@app.command()
def report(
    studies: Annotated[
        list[Path],
        typer.Argument(help="Study folders of one model; a table is taken from the first folder that has it."),
    ],
    output: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page; by default the model's name.")] = None,
    overwrite: Replace = False,
) -> None:
    """Write the tables of one or several studies as one HTML page, with a card for every head."""
    from headroles.plots.report import report as run

    path = run(studies, output, title=title, overwrite=overwrite)
    say(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB)")


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Study folder for the tables and figures.")] = Path("headroles-demo"),
    translation: Annotated[
        bool, typer.Option("--translation", help="Score a toy translator instead of MiniLM.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Score a pretrained encoder on the embedded corpus, assign roles and draw the figures, offline."""
    from headroles.experiments.demo import demo as run

    assigned, files = run(folder, translation=translation, overwrite=overwrite)
    show_roles(assigned)
    list_figures(files, folder)


COMMANDS = (
    compare,
    ablate,
    ablation_curve,
    agreement,
    relate,
    train,
    prune,
    compare_pruning,
    remove_heads,
    efficiency,
    weight_change,
    dynamics,
    prepare,
    replicate,
    specialise,
    check_model,
    architectures,
    reproduce,
)
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Run the command line; errors print one line and exit with code 2, or a traceback by HEADROLES_TRACEBACK=1."""
    level = logging.WARNING if _distributed.first() else logging.ERROR  # one process warns for all
    logging.basicConfig(level=level, format="headroles: %(message)s")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app(prog_name="headroles")
    except SystemExit as end:  # typer exits silently on Ctrl-C
        sys.exit(_fail("interrupted; finished tables are kept", 130) if end.code == 130 else end.code)
    except MemoryError:
        sys.exit(_fail("not enough memory; fewer tokens at once (--max-tokens, --batch), or sentences, need less", 2))
    except RecursionError as error:
        sys.exit(_fail(f"what was given is nested too deeply: {error}", 2))
    except (OSError, ValueError, TypeError, KeyError, ImportError, RuntimeError) as error:
        if os.environ.get("HEADROLES_TRACEBACK"):
            raise
        sys.exit(_fail(" ".join(str(error.args[0] if isinstance(error, KeyError) else error).split()), 2))


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"headroles: {message}\n")
    return code
