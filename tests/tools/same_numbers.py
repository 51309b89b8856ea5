"""Write tables of every kind of result, and compare two such folders bit by bit.

    python tests/tools/same_numbers.py write OUT [--models MODELS] [--only bert,llama,marian,minilm,translator,smollm2]
    python tests/tools/same_numbers.py compare BEFORE AFTER

`write` runs the public functions of the checkout in which it stands (or that PYTHONPATH names) with one thread: scores
of all kinds, relevance, ablation exact and with precision, curves, Shapley values, learned gates, rankings, relations,
role tests, cache budgets. MODELS has the folders `translator` (a Marian) and `smollm2`; what is missing is left out.
`compare` ends with an error unless all values of both folders have the same bits. Columns that were renamed between the
two are named in RENAMED. One processor and one version of torch: other instructions round in another way.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

import headroles as hr  # noqa: E402
from headroles.patterns import Offset  # noqa: E402

RENAMED = {  # whole words in names of columns
    "other": "resample", "rest": "all_but_one", "closed": "masked", "turn": "order", "own": "role_pattern",
    "there": "removed_local",
}  # fmt: skip
REWORDED = {  # verdicts
    "does not matter here": "no measurable effect on this corpus",
    "it has the pattern, and does something else": "has the pattern, but the pattern does not explain it",
}
TINY = ("bert", "llama", "marian")
OPTIONS = {"bert": {}, "llama": {"num_key_value_heads": 2}, "marian": {}}


def tokenizer_of(words: list[str]):
    special = ["<s>", "<pad>", "</s>", "<mask>", "<unk>"]
    vocabulary = {word: place for place, word in enumerate([*special, *words])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = dict(zip(("bos_token", "pad_token", "eos_token", "mask_token", "unk_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=60, **names)


def tiny(kind: str):
    corpus = hr.synthetic_corpus(60, translated=kind == "marian")
    texts = [sentence.text for sentence in corpus.sentences]
    texts += [sentence.target.text for sentence in corpus.sentences if sentence.target is not None]
    tokenizer = tokenizer_of(sorted({word for text in texts for word in text.replace(".", " . ").split()}))
    model = hr.tiny_model(kind, vocab_size=len(tokenizer), **OPTIONS[kind])
    return model, tokenizer, corpus


def plain(kind: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """The results of a tiny model: (name, function that makes the table)."""
    model, tokenizer, corpus = tiny(kind)
    call = lambda function, *args, **options: partial(function, model, tokenizer, corpus, *args, **options)  # noqa: E731
    few = {"n_resamples": 50}
    yield "scores", call(hr.score, **few)
    yield "scores-norm", call(hr.score, weights="norm", **few)
    if kind == "llama":
        yield "scores-nosink", call(hr.score, without_sink=True, **few)
        twice, repeats = hr.repeated_tokens(tokenizer, 8), ["induction", "duplicate", "previous"]
        yield "repeated", lambda: hr.score(model, tokenizer, twice, repeats, **few)
    gradients = [
        hr.Importance(), hr.Importance(per="token"), hr.Importance(norm="layer"), hr.AttributionPatching(),
        *([] if kind == "bert" else [hr.Direct()]), hr.Attribution("IntegratedGradients", (("n_steps", 4),)),
        *([hr.Importance(unit="group")] if kind == "llama" else []),
    ]  # fmt: skip
    for number, score in enumerate(gradients):
        yield f"gradients-{number}", call(hr.score, [score], **few)
    for rules in ("cp", "attn", "voita"):
        yield f"relevance-{rules}", call(hr.score, [hr.Relevance(rules, max_residue=None)], **few)
    for replacement in ("zero", "mean", "resample", "uniform", Offset(-1)):
        name = replacement if isinstance(replacement, str) else "pattern"
        yield f"ablate-{name}", call(hr.ablate, replacement=replacement, **few)
    for unit in ("group", "all_but_one", "layer", "kind"):
        yield f"ablate-{unit}", call(hr.ablate, unit=unit, **few)
    yield "ablate-precision", call(hr.ablate, precision=1.5, **few)
    yield "ablate-agreement", call(hr.ablate, metric="agreement", **few)
    if kind == "marian":
        yield "ablate-bleu", lambda: hr.ablate(model, tokenizer, corpus[:12], metric="bleu", **few)
    index = hr.score(model, tokenizer, corpus[:4], ["confidence"], n_resamples=0)
    up = index.sort_values("confidence").index.tolist()
    order = {"up": up, "down": up[::-1]}
    yield "curve", call(hr.ablation_curve, order, metric="loss", steps=4, **few)
    yield "shapley", lambda: hr.shapley_values(model, tokenizer, corpus[:16], n_permutations=4, **few)
    yield "evaluate", call(hr.evaluate, ["loss", "perplexity"], **few)
    scores, outcomes = hr.score(model, tokenizer, corpus, **few), hr.ablate(model, tokenizer, corpus, **few)
    roles = hr.roles(scores, thresholds={"positional": 0.1, "rare": 0.1, "sink": 0.1})
    yield "roles", lambda: roles
    yield "relate", lambda: hr.relate(roles, outcomes, n_resamples=50, n_permutations=99)
    survival = pruned(kind, "random", {"keep": 0.5, "remove": False})
    yield "predictors", lambda: hr.predict_outcome(scores, survival, n_resamples=20, n_permutations=99)
    yield "role-tests", call(hr.test_roles, {"enc-self:0:1" if kind != "llama" else "dec-self:0:1": Offset(-1)}, **few)
    for strategy in ("importance", "effect", "random", "bottom", "l0"):
        options = {"keep": 0.5, "remove": False}
        options |= {"unit": "group"} if kind == "llama" and strategy == "importance" else {}
        yield f"prune-{strategy}", partial(pruned, kind, strategy, options)
    if kind == "llama":
        yield "circuits", lambda: hr.scores.copying(model)
        yield "budget", lambda: budget(model, tokenizer)
    yield "removed", lambda: removed(kind)


def pruned(kind, strategy, options):
    model, tokenizer, corpus = tiny(kind)
    return hr.prune(model, tokenizer, corpus, strategy, seed=1, **options)


def removed(kind):
    """The logits of a model without two of its heads."""
    model, tokenizer, corpus = tiny(kind)
    site = "dec-self" if kind == "llama" else "enc-self"
    hr.remove_heads(model, [(site, 0, 1), (site, 1, 0)])
    text = tokenizer(corpus[0].text, return_tensors="pt")
    inputs = {"input_ids": text["input_ids"], "attention_mask": text["attention_mask"]}
    inputs |= {"decoder_input_ids": text["input_ids"]} if kind == "marian" else {}
    with torch.no_grad():
        return pd.DataFrame(model(**inputs).logits[0].double().numpy())


def budget(model, tokenizer, **options):
    facts = hr.hidden_facts(tokenizer, 3, facts=2, length=300) if options else None
    corpus = facts or hr.needles(tokenizer, 6, length=40, size=5)
    return hr.cache_budget(model, tokenizer, corpus, keep=0.5, sink=1, recent=8, points=2, **options)


def minilm(_: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    import headroles as hr

    model, tokenizer = hr.load("minilm")
    corpus = hr.synthetic_corpus(40)
    yield "scores", lambda: hr.score(model, tokenizer, corpus, n_resamples=50)
    yield "importance", lambda: hr.score(model, tokenizer, corpus, ["importance", "relevance"], n_resamples=20)


def translator(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    model, tokenizer = hr.load(folder / "translator")
    corpus = hr.synthetic_corpus(40, translated=True)
    yield "scores", lambda: hr.score(model, tokenizer, corpus, n_resamples=50)
    yield "gradients", lambda: hr.score(model, tokenizer, corpus, ["importance", "relevance"], n_resamples=20)
    yield "ablate", lambda: hr.ablate(model, tokenizer, corpus, n_resamples=50)
    yield "ablate-precision", lambda: hr.ablate(model, tokenizer, corpus, precision=1.5, n_resamples=50)
    yield "ablate-bleu", lambda: hr.ablate(model, tokenizer, corpus[:6], metric="bleu", unit="layer", n_resamples=50)
    roles = lambda: hr.roles(hr.score(model, tokenizer, corpus, n_resamples=50), thresholds={"positional": 0.4})  # noqa: E731
    yield "roles", roles
    yield "role-tests", lambda: hr.test_roles(model, tokenizer, corpus, roles(), n_resamples=20)


def smollm2(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    model, tokenizer = hr.load(folder / "smollm2")
    corpus = hr.synthetic_corpus(8)
    yield "scores", lambda: hr.score(model, tokenizer, corpus, n_resamples=50)
    yield "gradients", lambda: hr.score(model, tokenizer, corpus, ["importance", "relevance"], n_resamples=20)
    yield "ablate", lambda: hr.ablate(model, tokenizer, corpus, unit="layer", n_resamples=50)
    yield "ablate-group", lambda: hr.ablate(model, tokenizer, corpus[:4], unit="group", n_resamples=50)
    yield "budget", lambda: budget(model, tokenizer, steps=2)


def write(out: Path, folder: Path, only: list[str]) -> None:
    torch.set_num_threads(1)
    print(hr.__file__, flush=True)
    large, begun = {"minilm": minilm, "translator": translator, "smollm2": smollm2}, time.perf_counter()
    for name in only:
        if name in ("translator", "smollm2") and not (folder / name).exists():
            continue
        for what, make in plain(name) if name in TINY else large[name](folder):
            path = out / f"{name}-{what}.parquet"
            if path.exists():  # of a run that was stopped
                continue
            try:
                with warnings.catch_warnings(action="ignore"):
                    table = make()
            except Exception as error:  # noqa: BLE001
                table = pd.DataFrame({"error": [type(error).__name__], "text": [str(error)[:200]]})
                print(f"{name} {what}: {error!r:.200}", flush=True)
            save(pd.DataFrame(table), path)
        print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)


def save(table: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = table.reset_index()
    table.attrs = {}
    table.columns = [str(column) for column in table.columns]
    for column in table:
        if table[column].dtype == object or str(table[column].dtype) in ("category", "str"):
            table[column] = table[column].map(repr)
    table.to_parquet(path)


def compare(before: Path, after: Path) -> int:
    names = sorted({path.name for path in before.glob("*.parquet")} | {path.name for path in after.glob("*.parquet")})
    wrong = [f"{name}: {reason}" for name in names if (reason := difference(before / name, after / name))]
    values = sum(pd.read_parquet(before / name).size for name in names if (before / name).exists())
    print(*wrong, f"{len(names)} tables, {values} values: {len(names) - len(wrong)} the same to the last bit", sep="\n")
    return bool(wrong)


def difference(before: Path, after: Path) -> str:
    if not (before.exists() and after.exists()):
        return f"only {'before' if before.exists() else 'after'}"
    old, new = pd.read_parquet(before), pd.read_parquet(after)
    old = old.rename(columns=lambda name: re.sub(r"\w+", lambda word: RENAMED.get(word[0], word[0]), name))
    old = old.replace({repr(was): repr(now) for was, now in REWORDED.items()})
    if "error" in new and "error" in old:
        return "" if list(old["error"]) == list(new["error"]) else f"error {old['error'][0]} -> {new['error'][0]}"
    if "error" in new or "error" in old:
        return f"error: {(new if 'error' in new else old).iloc[0].tolist()}"
    if len(old) != len(new):
        return f"{len(old)} rows -> {len(new)}"
    lacking, more = [name for name in old if name not in new], [name for name in new if name not in old]
    other = [name for name in old if name in new and not same(old[name], new[name])]
    parts = {"columns that are missing": lacking, "new columns": more, "other values": other}
    return "; ".join(f"{what}: {', '.join(map(str, names))}" for what, names in parts.items() if names)


def same(old: pd.Series, new: pd.Series) -> bool:
    a, b = old.to_numpy(), new.to_numpy()
    if a.dtype.kind == "f" and b.dtype.kind == "f":
        return bool(np.array_equal(a, b, equal_nan=True))
    return [*map(str, a)] == [*map(str, b)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("out", type=Path)
    writing.add_argument("--models", type=Path, default=Path("../models"))
    writing.add_argument("--only", default=",".join((*TINY, "minilm", "translator", "smollm2")))
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "write":
        write(given.out, given.models, given.only.split(","))
    else:
        sys.exit(compare(given.before, given.after))
