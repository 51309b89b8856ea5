"""The options of the command line, each declared once, by subject."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

# models
Model = Annotated[str, typer.Argument(help="Hub id or local folder of a Hugging Face model with its tokenizer.")]
Submodel = Annotated[str | None, typer.Option(help="Submodel of a multimodal model, such as text.")]
Device = Annotated[str | None, typer.Option(help="PyTorch device; by default a GPU if available.")]
Devices = Annotated[
    str | None, typer.Option(help="PyTorch device, or auto for all available devices; by default a GPU if available.")
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Precision of the model; by default that of transformers."),
]

# corpora
Corpus = Annotated[
    Path, typer.Argument(help="Corpus: CoNLL-U (trees), text, parallel or labelled TSV, minimal pairs; .gz too.")
]
Target = Annotated[Path | None, typer.Argument(help="Translations of the corpus, line by line or as CoNLL-U.")]
TrainingCorpus = Annotated[Path, typer.Argument(help="Training corpus: labelled TSV, or text with its translations.")]
HeldOut = Annotated[Path, typer.Option(help="Corpus on which the metric is measured.")]
HeldOutTarget = Annotated[Path | None, typer.Option(help="Translations of the held-out corpus.")]
Limit = Annotated[int | None, typer.Option(help="Number of sentences to read from the start; by default all.", min=1)]
Sample = Annotated[
    int | None, typer.Option(help="Number of training examples, drawn at random; by default all.", min=1)
]
Prepared = Annotated[Path, typer.Argument(help="Folder of headroles prepare.")]

# Stanza
Language = Annotated[str, typer.Option(help="Stanza's code of the source language.")]
StanzaModels = Annotated[Path | None, typer.Option(help="Folder of Stanza models; by default Stanza's own.")]
Download = Annotated[
    Literal["missing", "never"] | None, typer.Option(help="Whether to download missing Stanza models.")
]

# results
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, and nothing else.")]

# studies and files
Study = Annotated[Path, typer.Option(help="Folder for the tables and figures.")]
Tables = Annotated[Path, typer.Argument(help="Study folder with tables, to which results are added.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Remove tables of another model or corpus from the folder.")
]
PrunedModels = Annotated[
    Path | None,
    typer.Option(help="Folder for the pruned and trained models, each in a folder named by its number of heads."),
]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace a file of another model or program.")]
Picture = Annotated[Path, typer.Option(help="Picture to write (.png, .pdf, .svg).")]

# measurement
METRICS = "loss, perplexity, agreement, accuracy, f1, matthews, bleu, chrf, pair_accuracy or pair_difference"
Metric = Annotated[str, typer.Option(help=f"Metric: {METRICS}.")]
Replacement = Annotated[
    Literal["zero", "mean", "resample", "uniform", "rescale"],
    typer.Option(help="Replacement of an ablated head's output."),
]
Steps = Annotated[int, typer.Option(help="Number of steps in which all heads are ablated.", min=1)]
Resamples = Annotated[int, typer.Option("--resamples", help="Number of bootstrap resamples of sentences.", min=0)]
MaxTokens = Annotated[int, typer.Option(help="Largest number of tokens in a batch, padding included.", min=1)]
Seed = Annotated[int, typer.Option(help="Seed of random choices.")]

# heads
HEADS = "kind:layer:head (L0H2 where there is one kind), separated by commas, or TABLE:COLUMN of prune."
Kinds = Annotated[str | None, typer.Option(help="Kinds of heads, separated by commas; by default all.")]
Keep = Annotated[str, typer.Option(help="Numbers of heads to keep, or shares below 1, separated by commas.")]
GateRate = Annotated[
    float | None, typer.Option(help="Learning rate of gates; by default large enough for gates to converge.")
]
Freeze = Annotated[
    Literal["nothing", "decoder", "all"], typer.Option(help="Parameters to freeze while gates are trained.")
]
RoleScores = Annotated[Path | None, typer.Option(help="Score table (heads.parquet) for the strategy `roles`.")]

# training
Epochs = Annotated[int, typer.Option(help="Number of epochs.", min=1)]
Batch = Annotated[int, typer.Option(help="Examples of a step, on each process.", min=1)]
Rate = Annotated[float, typer.Option(help="Peak learning rate of the weights.")]
Warmup = Annotated[int, typer.Option(help="Number of warm-up steps.", min=0)]
Smoothing = Annotated[float, typer.Option(help="Label smoothing.", min=0, max=1)]
SAMPLING: Final = "shuffled_groups"  # the default of `hr.train`
Sampling = Annotated[
    Literal["shuffled_groups", "group_by_length", "random"],
    typer.Option(help="Examples of a step: similar lengths; the same, longest of 50 steps first; any length."),
]
