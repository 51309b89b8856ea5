"""The study of PLAN.md: `make.py data`, `tables`, `pictures`; `make.py test MODEL FOLDER DATA` is of one model."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.analysis.role_rules import names
from headroles.data.corpus import Corpus
from headroles.models.head_model import HeadModel
from headroles.models.loading import untrained
from headroles.models.masking import Head
from headroles.patterns import Dependency, First, Offset, Pattern, Special, Where
from headroles.patterns.of_roles import pattern_of

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add, put_rows, rows_of  # noqa: E402 - of all studies

ROLES, TESTS = HERE / "roles.parquet", HERE / "tests.parquet"  # rows of all models, and of all parts of the tests
SINKS, SENTENCES, FEWER, ASSIGNED, REPEATED = 12, 500, 100, 1000, 100
CLASSES = {"mpnet": "AutoModel"}  # its checkpoint lacks the output layer of the class that it was saved from
ON_REPEATED = ("induction", "duplicate")
OFFSETS = (-3, -2, -1, 1, 2, 3)  # in place of a dependency; a decoder has those that are negative
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command("test")
def main(
    name: Annotated[str, typer.Argument(help="Name in the tables: minilm, mpnet, smollm2, gemma3.")],
    folder: Annotated[str, typer.Argument(help="The model; for minilm any word.")],
    data: Annotated[Path, typer.Argument(help="Folder with ud/ewt and ud/pud.")],
    work: Annotated[Path, typer.Option(help="Folder of unfinished sweeps.")] = Path(".substitution"),
    arms: Annotated[
        str, typer.Option(help="Of: trained, untrained, exchanged, as sharp, fixed offset; commas between.")
    ] = "trained,untrained,as sharp,fixed offset",
    sentences: Annotated[int, typer.Option(help="Sentences of the test; fewer only to try the script.")] = SENTENCES,
    parts: Annotated[
        str, typer.Option(help="Which of: text, repeated, previous, undecided; commas between.")
    ] = "text,repeated,previous",
) -> None:
    """Assign roles, test them, and write the rows of a model into `roles` and `tests`."""
    logging.basicConfig(level=logging.INFO)
    model, tokenizer = hr.load("minilm" if name == "minilm" else folder, cls=CLASSES.get(name))
    scores, roles = assigned(model, tokenizer, data, work / name)
    put_rows(roles, ROLES, model=name)
    text = hr.read(data / "ud/pud/en_pud-ud-test.conllu.gz").sample(sentences, seed=0)
    repeated = hr.repeated_tokens(tokenizer, REPEATED, seed=1)
    corpora = {"": text, "-repeated": repeated, "-previous": repeated, "-undecided": _others(data)}
    for arm in arms.split(","):
        tested = untrained(model, seed=0) if arm == "untrained" else model
        for part, corpus in corpora.items():
            if (part.removeprefix("-") or "text") not in parts.split(","):
                continue
            patterns = _patterns(roles, is_repeated=part == "-repeated")
            if part == "-previous":
                patterns = _previous(roles) if arm in ("trained", "untrained") else {}
            if part == "-undecided":
                patterns = _undecided(name, patterns) if arm == "trained" else {}
            if arm == "exchanged":
                layers, patterns = _exchanged(patterns) if part == "-repeated" else ((), {})
                tested = _with_exchanged(model, *layers) if patterns else model
            if arm == "as sharp":
                patterns = {} if part else _as_sharp(scores, roles, _alone(patterns))
            if arm == "fixed offset":
                patterns = _fixed_offsets(patterns)
            if patterns:
                _test(tested, tokenizer, corpus, patterns, work / name / arm, f"{name}{part}", arm)


def assigned(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Path, folder: Path
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score the heads on EWT, and on repeated tokens if the model is a decoder; assign roles by the thresholds."""
    text = hr.read(data / "ud/ewt/en_ewt-ud-train.conllu.gz", limit=ASSIGNED)
    scores = hr.score(model, tokenizer, text, study=folder / "ewt")
    if "dec-self" in scores.index.get_level_values("kind"):
        again = hr.repeated_tokens(tokenizer, REPEATED, seed=0)
        seen = [column for column in scores if str(column).startswith(ON_REPEATED)]  # words of a text repeat little
        repeated = hr.score(model, tokenizer, again, ON_REPEATED, study=folder / "repeated")
        scores = hr.join(scores.drop(columns=seen), repeated)
    return scores, hr.roles(scores)


def _patterns(roles: pd.DataFrame, *, is_repeated: bool) -> dict[Head, list[Pattern]]:
    """Return the patterns of every head with a role, by the corpus on which the role is tested."""
    patterns: dict[Head, list[Pattern]] = {}
    for role in names(roles):
        pattern = pattern_of(role)
        if pattern is None or (role in ON_REPEATED) != is_repeated or "-norm" in role:
            continue
        for head in roles.index[roles[role].to_numpy(bool)]:
            patterns.setdefault((*head,), []).append(pattern)
    return patterns


def _previous(roles: pd.DataFrame) -> dict[Head, list[Pattern]]:
    """Return the pattern of the previous token for all heads of the layers of a decoder that have such a head."""
    layers = {(kind, layer) for kind, layer, _ in roles.index[roles["positional[-1]"]] if kind == "dec-self"}
    return {(*head,): [Offset(-1)] for head in roles.index if head[:2] in layers}


def _exchanged(patterns: Mapping[Head, list[Pattern]]) -> tuple[tuple[int, int], dict[Head, list[Pattern]]]:
    """Return the layer with most heads with a role, the nearest one below without any, and the patterns of the first.

    A model whose layers have each other's heads needs them, but their places have no role: a control that can fail.
    """
    layers = [layer for _, layer, _ in patterns]
    most = max(layers, key=lambda layer: (layers.count(layer), layer))
    other = max(layer for layer in range(most) if layer not in layers)
    return (most, other), {head: given for head, given in patterns.items() if head[1] == most}


def _with_exchanged(model: PreTrainedModel, layer: int, other: int) -> PreTrainedModel:
    """Return a copy of a decoder in which two layers have each other's attention."""
    exchanged = copy.deepcopy(model)
    modules = [site.module for site in HeadModel(exchanged).sites if site.layer in (layer, other)]
    states = [{name: tensor.clone() for name, tensor in module.state_dict().items()} for module in modules]
    for module, state in zip(modules, reversed(states), strict=True):
        module.load_state_dict(state)
    return exchanged


def _others(data: Path) -> Corpus:
    """Return the sentences of the plan that the fewer of language models and MPNet leave out."""
    pud = hr.read(data / "ud/pud/en_pud-ud-test.conllu.gz")
    seen = {sentence.text for sentence in pud.sample(FEWER, seed=0)}
    drawn = pud.sample(SENTENCES, seed=0)
    return Corpus(drawn.name, tuple(sentence for sentence in drawn if sentence.text not in seen))


def _undecided(name: str, patterns: Mapping[Head, list[Pattern]]) -> dict[Head, list[Pattern]]:
    """Return the patterns of single heads that the first sentences left undecided; of Gemma 3 the positional ones."""
    table = rows_of(TESTS, model=name, part="")
    rows = {*table.index[table["verdict"] == "undecided"]}
    chosen: dict[Head, list[Pattern]] = {}
    for head, given in patterns.items():
        left = [one for one in given if (":".join(map(str, head)), one.label) in rows]
        if name == "gemma3":
            left = [one for one in left if isinstance(one, Offset)]
        if left:
            chosen[head] = left
    return chosen


def _alone(patterns: Mapping[Head, list[Pattern]]) -> list[Head]:
    """Return the heads that are tested one by one: all with a role other than a sink, and of the sinks some drawn."""
    sinks = [head for head, given in patterns.items() if all(isinstance(one, First | Special) for one in given)]
    drawn = np.random.default_rng(0).permutation(len(sinks))[:SINKS]
    left_out = {head for row, head in enumerate(sinks) if row not in drawn}
    return [head for head in patterns if head not in left_out]


def _as_sharp(scores: pd.DataFrame, roles: pd.DataFrame, heads: Iterable[Head]) -> dict[Head, list[Pattern]]:
    """Return for each head that of its layer without a role and with the nearest confidence, under its best offset."""
    free = ~roles[names(roles)].any(axis=1)
    chosen: dict[Head, list[Pattern]] = {}
    for kind, layer, head in heads:
        others = scores[free].query("kind == @kind and layer == @layer")
        if kind == "cross" or others.empty or others["position[offset]"].isna().all():
            continue
        apart = (others["confidence"] - scores.loc[(kind, layer, head), "confidence"]).abs()
        near = apart.idxmin()
        chosen[near] = [best_offset(scores, near)]
    return chosen


def best_offset(scores: pd.DataFrame, head: Head) -> Pattern:
    """Return the offset that fits a head best."""
    return Offset(int(scores.loc[head, "position[offset]"]))


def _fixed_offsets(patterns: Mapping[Head, list[Pattern]]) -> dict[Head, list[Pattern]]:
    """Return for each dependency the fixed offsets at the tokens that have it."""
    chosen: dict[Head, list[Pattern]] = {}
    for head, given in patterns.items():
        for pattern in given:
            if isinstance(pattern, Dependency):
                offsets = [by for by in OFFSETS if by < 0 or head[0] == "enc-self"]
                chosen.setdefault(head, []).extend(Where(pattern, Offset(by)) for by in offsets)
    return chosen


def _test(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    patterns: Mapping[Head, list[Pattern]],
    folder: Path,
    name: str,
    arm: str,
) -> None:
    metric = "loss" if model.get_output_embeddings() is not None else "agreement"
    table = hr.test_roles(
        model,
        tokenizer,
        corpus,
        patterns,
        metric=metric,
        heads=None if name.endswith("undecided") else _alone(patterns),
        study=folder / name,
    )
    suffix = "" if arm == "trained" else f"-{arm.replace(' ', '-')}"
    model_name, _, part = f"{name}{suffix}".partition("-")
    put_rows(table, TESTS, model=model_name, part=part)


add(app, HERE)

if __name__ == "__main__":
    app()
