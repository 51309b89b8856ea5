"""The command line: each subcommand parses its arguments, makes one public call and says what it wrote."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

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
from headroles.cli.check import Tower, architectures, check_model
from headroles.cli.console import list_figures, say, show_roles
from headroles.cli.papers import prepare, replicate, reproduce, specialise
from headroles.cli.prune import compare_pruning, dynamics, efficiency, prune, remove_heads, weight_change

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="What does each attention head of a Hugging Face model do, and does it matter?",
)
Model = Annotated[str, typer.Argument(help="Hub id or local folder of a Hugging Face model with its tokenizer.")]
Folder = Annotated[Path, typer.Argument(help="Study folder: its tables are read and the results put beside them.")]


@app.command()
def parse(
    text: Annotated[Path, typer.Argument(help="Text file (.gz too), one sentence per line.")],
    output: Annotated[Path | None, typer.Option(help="Also write the trees here, as CoNLL-U.")] = None,
    language: Annotated[str, typer.Option(help="Language of the text, as Stanza calls it.")] = "en",
    models: Annotated[Path | None, typer.Option(help="Folder of Stanza models; by default Stanza's own.")] = None,
    download: Annotated[
        Literal["missing", "never"] | None, typer.Option(help="Fetch models that are not there?")
    ] = None,
) -> None:
    """Give every sentence of a text a dependency tree by Stanza, kept as CoNLL-U beside the text."""
    from headroles.data.stanza_parser import parse as run

    corpus = run(text, language=language, models=models, download=download, output=output)
    where = f"in {output}" if output else f"beside {text}"
    say(f"{len(corpus)} sentences parsed; their CoNLL-U is {where}")


@app.command()
def score(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus: CoNLL-U (trees), text, parallel or labelled TSV; .gz too.")],
    target: Annotated[Path | None, typer.Argument(help="Its translations, line by line or as CoNLL-U.")] = None,
    study: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("study"),
    scores: Annotated[str | None, typer.Option(help="Scores, separated by commas; by default all that apply.")] = None,
    rules: Annotated[str, typer.Option(help="Rule sets of the score relevance, separated by commas.")] = "cp",
    limit: Annotated[int | None, typer.Option(help="Only the first sentences of the corpus.", min=1)] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Read the corpus while it is scored: files of any length.")
    ] = False,
    reference: Annotated[
        Path | None, typer.Option(help="Corpus to count token frequencies in; by default itself.")
    ] = None,
    n_resamples: Annotated[int, typer.Option("--resamples", help="Bootstrap resamples of sentences.", min=0)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Tokens in a batch, with padding.", min=1)] = 4096,
    overwrite: Overwrite = False,
    submodel: Tower = None,
    device: Devices = None,
    dtype: Dtype = None,
) -> None:
    """Score every attention head of a model on a corpus, tell the roles and draw the figures."""
    from headroles.analysis.role_rules import assignable
    from headroles.data.readers import read
    from headroles.data.streaming import StreamingCorpus
    from headroles.experiments.score_study import balances, draw, measure, tell

    folder = study_of(study, overwrite=overwrite)
    sentences = StreamingCorpus(corpus, target, limit=limit) if stream else read(corpus, target, limit=limit)
    counted = None if reference is None else read(reference)
    loaded, tokenizer = opened(model, device, submodel=submodel, dtype=dtype)
    asked = None if scores is None else scores_of(scores, rules)
    options: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed, "max_tokens": max_tokens, "reference": counted}
    measure(folder, loaded, tokenizer, sentences, asked, **options)
    for name, shares in balances(folder).items():
        parts = ", ".join(f"{part} {100 * share:.1f} %" for part, share in shares.items())
        say(f"relevance by {name}, of what is explained: {parts}")
    if assignable(folder.load("heads")):
        show_roles(tell(folder))
    list_figures(draw(folder), study)


@app.command()
def roles(
    study: Folder,
    threshold: Annotated[
        list[str] | None, typer.Option(help="A role's threshold, as positional=0.8; repeatable.")
    ] = None,
) -> None:
    """Tell the roles of the heads of a study from its scores, and print those that have any."""
    from headroles.experiments.score_study import tell
    from headroles.tables.study import Study

    folder = Study(study)
    show_roles(tell(folder, thresholds=dict(map(assignment, threshold or []))))
    say(f"written: {folder.path('roles')}")


@app.command()
def plot(study: Folder) -> None:
    """Draw every figure that the tables of a study allow, beside them."""
    from headroles.experiments.score_study import draw
    from headroles.tables.study import Study

    list_figures(draw(Study(study)), study)


@app.command()
def attention(
    model: Model,
    sentence: Annotated[str, typer.Argument(help="The sentence.")],
    head: Annotated[str, typer.Argument(help="The head, as kind:layer:head, such as enc-self:0:2.")],
    output: Annotated[Path, typer.Option(help="Picture to write (.png, .pdf, .svg).")] = Path("attention.png"),
    overwrite: Replace = False,
    submodel: Tower = None,
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
    target: Annotated[Path | None, typer.Argument(help="Its translations, line by line or as CoNLL-U.")] = None,
    limit: Annotated[int, typer.Option(help="How many of its first sentences.", min=1)] = 3,
    study: Annotated[Path, typer.Option(help="Folder for the table.")] = Path("study"),
    overwrite: Overwrite = False,
    device: Devices = None,
) -> None:
    """Keep the attention of every head on a few example sentences, for the report."""
    from headroles.data.readers import read
    from headroles.scores.examples import attention_examples as run

    folder = study_of(study, overwrite=overwrite)
    sentences = read(corpus, target, limit=limit)
    loaded, tokenizer = opened(model, device)
    table = run(folder, loaded, tokenizer, sentences, limit=limit)
    count = table["sentence"].nunique()
    say(f"attention of {len(table) // count} heads on {count} sentences is in {folder.path('attention')}")


@app.command()
def report(
    studies: Annotated[list[Path], typer.Argument(help="Study folders of one model; later ones add what is missing.")],
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
    translation: Annotated[bool, typer.Option("--translation", help="A toy translator instead of MiniLM.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Score a real pretrained encoder on the embedded corpus: roles, heatmaps and the role map, without any network."""
    from headroles.experiments.demo import demo as run

    told, files = run(folder, translation=translation, overwrite=overwrite)
    show_roles(told)
    list_figures(files, folder)


REST = (
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
)
for command in (*REST, prepare, replicate, specialise, check_model, architectures):
    app.command()(command)
app.command()(reproduce)


def main() -> None:
    """Run the command line; bad input ends it with one line on standard error and exit code 2.

    HEADROLES_TRACEBACK=1 shows where an error comes from.
    """
    told = logging.WARNING if _distributed.first() else logging.ERROR  # what several processes see is said once
    logging.basicConfig(level=told, format="headroles: %(message)s")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app(prog_name="headroles")
    except SystemExit as end:  # typer makes a Ctrl-C an exit without a word
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
