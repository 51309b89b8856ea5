"""The commands that score heads, assign roles and draw: parse, score, roles, plot, attention, report, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import headroles as hr
from headroles.cli import options
from headroles.cli.arguments import check_heads, head_of, load_model, scores_of, study_of, threshold
from headroles.cli.console import draw_figures, list_figures, say, show_measured, show_roles, show_rows
from headroles.cli.record import record

SHOWN = 10  # rows of circuits


def parse(
    text: Annotated[Path, typer.Argument(help="Text file (.gz too), one sentence per line.")],
    output: Annotated[Path | None, typer.Option(help="CoNLL-U file for the trees.")] = None,
    language: options.Language = "en",
    models: options.StanzaModels = None,
    download: options.Download = None,
) -> None:
    """Parse every sentence of a text with Stanza and save the trees as CoNLL-U beside the text."""
    from headroles.data.stanza_parser import trees_path

    corpus = hr.parse(text, language=language, models=models, download=download, output=output)
    written = output or trees_path(text, language=language, models=models)
    record().words["output"] = str(written)
    say(f"{len(corpus)} sentences parsed; their CoNLL-U is {written}")


def score(
    model: options.Model,
    corpus: options.Corpus,
    target: options.Target = None,
    study: options.Study = Path("study"),
    scores: Annotated[str | None, typer.Option(help="Scores, separated by commas; by default all that apply.")] = None,
    weights: Annotated[
        Literal["attention", "norm"],
        typer.Option(help="What attention scores read: attention weights, or norms of the vectors that heads move."),
    ] = "attention",
    rules: Annotated[str, typer.Option(help="Rule sets of the score relevance, separated by commas.")] = "cp",
    limit: options.Limit = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Read the corpus in parts during scoring, for files of any length.")
    ] = False,
    reference: Annotated[
        Path | None, typer.Option(help="Corpus of token counts; by default the scored corpus.")
    ] = None,
    n_resamples: options.Resamples = 1000,
    seed: options.Seed = 0,
    max_tokens: options.MaxTokens = 4096,
    overwrite: options.Overwrite = False,
    submodel: options.Submodel = None,
    device: options.Devices = None,
    dtype: options.Dtype = None,
) -> None:
    """Score every attention head of a model on a corpus, assign roles and draw the figures."""
    from headroles.analysis.role_rules import assignable
    from headroles.papers.score_study import balances

    folder = study_of(study, overwrite=overwrite)
    sentences = (hr.StreamingCorpus if stream else hr.read)(corpus, target, limit=limit)
    counted = None if reference is None else hr.read(reference)
    loaded, tokenizer = load_model(model, device, submodel=submodel, dtype=dtype)
    chosen = None if scores is None else scores_of(scores, rules)
    table = hr.score(
        loaded,
        tokenizer,
        sentences,
        chosen,
        weights=weights,
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
        show_roles(hr.papers.assign_roles(folder))
    draw_figures(folder)
    show_measured(table, hr.scores.left_out(table, chosen))


def circuits(
    model: options.Model,
    study: options.Study = Path("study"),
    overwrite: options.Overwrite = False,
    submodel: options.Submodel = None,
    device: options.Device = None,
) -> None:
    """Score heads by their weights alone, without a corpus: copying, succession, and composition between layers."""
    from headroles.analysis.role_rules import assignable

    folder = study_of(study, overwrite=overwrite)
    loaded, tokenizer = load_model(model, device, submodel=submodel, whole=True)
    pairs, lacking = hr.papers.circuits_study(loaded, tokenizer, folder)
    record().left_out.update(lacking)
    if folder.has("circuits"):
        table = folder.load("circuits")
        first = str(table.columns[0])
        show_rows(table.nlargest(SHOWN, first).reset_index(), f"heads with the largest {first}")
        if assignable(table):
            show_roles(hr.roles(table))
    show_rows(pairs.nlargest(SHOWN, "key"), "pairs of heads with the largest key composition")
    say(f"tables are in {folder.folder}")


def roles(
    study: options.Tables,
    thresholds: Annotated[
        list[str] | None, typer.Option("--threshold", help="Threshold of a role, such as positional=0.8; repeatable.")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Test whether scores exceed the thresholds, with corrections over heads.")
    ] = False,
) -> None:
    """Assign roles to the heads of a study by its scores, and print the heads that have any."""
    folder = hr.Study(study)
    assigned = hr.papers.assign_roles(folder, thresholds=dict(map(threshold, thresholds or [])), test=test)
    show_roles(assigned)
    if test:
        decisions = hr.analysis.role_decisions(assigned)
        show_rows(decisions.reset_index(), "heads above the threshold, and significantly so at 0.05")
    say(f"written: {folder.path('roles')}")


def plot(study: options.Tables) -> None:
    """Draw every figure that the tables of a study allow."""
    folder = hr.Study(study)
    list_figures(hr.papers.draw(folder), folder.folder)


def attention(
    model: options.Model,
    sentence: Annotated[str, typer.Argument(help="Sentence on which attention is computed.")],
    head: Annotated[str, typer.Argument(help="Head such as enc-self:0:2, or L0H2 where there is one kind.")],
    output: options.Picture = Path("attention.png"),
    overwrite: options.Replace = False,
    submodel: options.Submodel = None,
) -> None:
    """Draw the attention of one head on one sentence."""
    from headroles.models import loading, provenance
    from headroles.plots import gallery
    from headroles.tables import io

    check_heads(head)
    io.check_writable(output.parent, "folder")
    loaded, tokenizer = loading.load(model, submodel=submodel)
    of = provenance.revision(loaded)
    io.check_ours(output, of, overwrite=overwrite)
    axes = hr.plots.attention(hr.scores.attention_matrix(loaded, tokenizer, sentence, head_of(head, loaded)))
    axes.set_title(head)
    gallery.save(axes, output, of=of)
    say(f"written: {output}")


def attention_examples(
    model: options.Model,
    corpus: options.Corpus,
    target: options.Target = None,
    limit: Annotated[int, typer.Option(help="Number of example sentences.", min=1)] = 3,
    study: options.Study = Path("study"),
    overwrite: options.Overwrite = False,
    device: options.Devices = None,
) -> None:
    """Save the attention of every head on a few example sentences, for the report."""
    folder = study_of(study, overwrite=overwrite)
    sentences = hr.read(corpus, target, limit=limit)
    loaded, tokenizer = load_model(model, device)
    table = hr.attention_examples(loaded, tokenizer, sentences, limit=limit, study=folder)
    count = table["sentence"].nunique()
    say(f"attention of {len(table) // count} heads on {count} sentences is in {folder.path('attention')}")


def report(
    studies: Annotated[
        list[Path],
        typer.Argument(help="Study folders of one model; a table is taken from the first folder that has it."),
    ],
    output: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page; by default the model's name.")] = None,
    overwrite: options.Replace = False,
) -> None:
    """Write the tables of one or several studies as one HTML page, with a card for every head."""
    path = hr.report(studies, output, title=title, overwrite=overwrite)
    say(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB)")


def demo(
    study: Annotated[
        Path | None,
        typer.Option(
            "--study",
            "--folder",
            help="Folder for the tables and figures; by default headroles-demo or headroles-demo-translation.",
        ),
    ] = None,
    translation: Annotated[
        bool, typer.Option("--translation", help="Score a small translator instead of MiniLM.")
    ] = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Score a pretrained encoder on the embedded corpus, assign roles and draw the figures, offline."""
    from headroles.cli.demo import OF_TRANSLATOR
    from headroles.cli.demo import demo as run

    study = study or Path("headroles-demo-translation" if translation else "headroles-demo")
    assigned, files = run(study, translation=translation, overwrite=overwrite)
    show_roles(assigned)
    list_figures(files, study)
    table = hr.Study(study).load("heads")
    show_measured(table, hr.scores.left_out(table, OF_TRANSLATOR if translation else None))
