"""Which score predicts the heads that matter? Relevance by each rule set, importance, confidence and chance.

    python figures/questions/relevance/make.py MODEL CORPUS [TARGET] --held-out OTHER --study FOLDER

writes into a study: `heads`, scores and effects of ablating every head on the corpus; `agreement`, rank correlations of
the scores with these effects; `curves`, heads ablated cumulatively on the held-out sentences, the least relevant first
(agreement with the intact model's choices; of an encoder the cosine with its states); and `areas`, the mean heights of
the curves. `figures/models/minilm/relevance` and `figures/models/multi30k-en-de/relevance` are of 300 resamples.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.scores import outputs
from headroles.scores.lrp import Rules
from headroles.tables.columns import of_name

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

ABLATION = "attribution[FeatureAblation].size"  # the effect of ablating one head on the target
RULES: tuple[Rules, ...] = ("cp", "attn", "voita", "gradient")
TOKENS = 1024  # of a batch; four times as many for the curves


def main(
    model: str,
    corpus: Path,
    target: Annotated[Path | None, typer.Argument(help="Translations of the corpus.")] = None,
    held_out: Annotated[Path | None, typer.Option(help="Corpus of the curves; by default the same.")] = None,
    held_out_target: Annotated[Path | None, typer.Option(help="Its translations.")] = None,
    limit: Annotated[int | None, typer.Option(help="Number of sentences.")] = None,
    resamples: Annotated[int, typer.Option(help="Number of bootstrap resamples.")] = 300,
    study: Annotated[Path, typer.Option(help="Folder of the tables.")] = Path("study"),
) -> None:
    parts = hr.read(corpus, target, limit=limit), hr.read(held_out or corpus, held_out_target or target, limit=limit)
    compare(*hr.load(model), *parts, hr.Study(study), n_resamples=resamples)


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: hr.Corpus,
    held_out: hr.Corpus,
    study: hr.Study,
    *,
    rules: Sequence[Rules] = RULES,
    seeds: int = 10,
    n_resamples: int = 300,
) -> None:
    """Write the four tables; only Voita's rules explain the sum of all steps in one pass."""
    handle, options = HeadModel(model), {"n_resamples": n_resamples}
    lossless = not outputs.has_vocabulary(handle) and not outputs.has_classes(handle)
    importance = hr.Importance(objective="similarity" if lossless else None)
    scores = ["confidence", importance, hr.Attribution(method="FeatureAblation")]
    for name in rules:
        steps = "sum" if name.startswith("voita") else "all"
        scores += [hr.Relevance(rules=name, steps=steps, by=by) for by in ("layer", "logit")]
    table = hr.score(model, tokenizer, corpus, scores, max_tokens=TOKENS, study=study, **options)
    ranked = ("confidence", "importance", *of_name(table, "relevance", "size"))
    names = [name for name in map(str, table) if name in ranked]
    study.save("agreement", hr.analysis.agreement(table, names, ABLATION))
    orders = hr.ablation.orders(table, [*names, ABLATION], seeds=seeds)
    curves = hr.ablation_curve(model, tokenizer, held_out, orders, max_tokens=4 * TOKENS, **options)
    study.save("curves", curves)
    study.save("areas", hr.ablation.areas(curves))


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("measure")(main)
add(app, HERE)

if __name__ == "__main__":
    app()
