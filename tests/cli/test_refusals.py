"""What commands refuse: what is typed, and the subject and the value that the message names; nothing is written."""

from __future__ import annotations

import re

import pytest
from helpers.commands import files, run

SWEEP = "labels.tsv --held-out labels.tsv --study new"
REFUSED = {  # files are those of the fixture `place`
    "score model prose.conllu": "prose.conllu, line 1: found 1 column: 'Hello there.'; .*headroles parse",
    "score model empty.txt": "empty.txt is empty; expected at least one sentence",
    "score model none.txt": "no file at none.txt",
    "score none text.txt": "could not load 'none': no such folder here; a hub id is owner/name: ",
    "score model none.txt none.txt": "no file at none.txt",
    "score model long.txt": "corpus 'long' must have a sentence of at most 32 tokens, .*; split them",
    "score model text.txt --scores syntax": "score 'syntax' needs dependency trees, .* headroles parse",
    "score model text.txt --scores magic": "score must be one of alignment, .*, got 'magic'",
    "score model text.txt --scores confidence,confidence": "--scores must be different, got 'confidence'",
    "score model text.txt --scores alignment": "score 'alignment' is for cross heads, ",
    "score model text.txt --study text.txt": "--study must be a folder of tables, got the file text.txt",
    "score text.txt text.txt": "model must be a folder or a hub id, got the file 'text.txt'; try ",
    "score model text.txt --cls nonsense": "could not load .*, got nonsense from cls; try --cls ",
    "parse none.txt": "no file at none.txt",
    "parse tree.conllu": "sentence 1 of corpus 'tree' already has a tree on its source side; ",
    "remove-heads model enc-self:2:0 --output new": r"no head enc-self L2H0 in BertModel, .* 2 layers",
    "remove-heads model cross:0:0 --output new": r"no head cross L0H0 in BertModel, which has enc-self",
    **{f"remove-heads none {text} --output new": f"head '{text}' is not of the form L0H2, or enc-self L0H2 where "
       for text in ("0:1", "L0", "magic:0:1", "L0H1L0H2")},
    "remove-heads none study/heads.parquet --output new":
        r"column of study/heads.parquet must be one of survival\[...\], got ''",
    "roles study --threshold magic=0.5": "role must be .*'magic'",
    "roles text.txt": "study must be a folder of tables, got the file text.txt",
    "roles none": "no table 'heads' in none, which has none; make it with headroles score",
    "roles none --json": "no table 'heads' in none, which has none; make it with headroles score",
    "plot none": "no tables in none; make them with headroles score",
    "test-roles model text.txt --study new": "no table 'roles' in new, which has none; make it with headroles roles ",
    "relate study study --study new":
        "no table 'roles' in study, which has heads; make it with headroles roles study",
    "report study --output folder": "folder is a folder; name a file in it",
    "reproduce voita2019 fig99 --model none --data none": "artefact must be one of fig1a, .*, got 'fig99'; try 'fig9'",
    "train none labels.tsv --output study":
        "study is a study: it holds heads.parquet; name another folder for the model",
    "train none labels.tsv --output text.txt": "cannot write into folder text.txt: Not a directory; name another",
    "ablation-curve model text.txt --study none":
        "no scores in none; make them with headroles score MODEL CORPUS --study none",
    "ablation-curve model text.txt --study study --by ablation[loss] --kind cross":
        "--kind must be one of enc-self, got 'cross'",
    "prune model labels.tsv --keep 0.5":
        "objective 'loss' needs a model that classifies or predicts tokens, got BertModel; try --strategy confidence, ",
    "prune model labels.tsv --strategy l0 --gate-rate -1 --cls BertForSequenceClassification --allow-random":
        "the rate of gates must be a number > 0, got -1.0",
    "sparsity-sweep model text.txt --held-out text.txt --study new":
        "the model must classify or predict tokens, got BertModel; try headroles train, or "
        r"headroles.load_classifier\(name, corpus\) in Python, .*, such as --cls AutoModelForMaskedLM",
    # options that are not read with the others
    "score none text.txt --scores confidence,importance --rules attn": "--rules requires --scores relevance",
    "score none text.txt --max-residue 0.001": "--max-residue requires --scores relevance",
    "prune none text.txt --gate-rate 0.5": "--gate-rate requires --strategy l0",
    "prune none text.txt --strategy -importance --freeze all": "--freeze requires --strategy l0",
    "prune none text.txt --warmup 5": "--warmup requires --train, or --strategy l0",
    f"sparsity-sweep none {SWEEP} --role-scores none.parquet": "--role-scores requires --strategy roles",
    f"compare-pruning none {SWEEP} --strategies importance,random --gate-rate 0.5":
        "--gate-rate requires --strategies l0",
    "cache-budget none text.txt --by random --steps 7": "--steps requires --by l0",
    "cache-budget none text.txt --haystack text.txt": "--haystack requires corpus=hidden-facts",
    "score none repeated-tokens text.txt": "corpus repeated-tokens takes no target, got ",
    "check-model --config model/config.json --cls BertModel": ".* CONFIG.json without --cls and --allow-random, ",
}  # fmt: skip
USAGE = {  # what typer refuses
    "--no-figures": "No such option: --no-figures",
    "evaluat": "No such command 'evaluat'. Did you mean 'evaluate', 'relate', 'ablate'?",
    "score": "Missing argument 'model'.",
    "score a b --limit 0": "Invalid value for '--limit': Input should be greater than or equal to 1",
    "score a b --weights x": "Invalid value for '--weights': Value error, 'x' is not one of 'attention', 'norm'.",
    "roles a --threshold sink": "Invalid value for '--threshold': Value error, could not convert string to float: ''",
    "sparsity-sweep a b --keep x": "Invalid value for '--keep': Value error, could not convert string to float: 'x'",
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_mistake_is_one_line(command, place):
    before = files(place)
    end = run(*command.split())
    assert (end.code, end.out) == (2, "")
    assert re.fullmatch(rf"headroles: {REFUSED[command]}.*\n", end.err), end.err
    assert files(place) == before


@pytest.mark.parametrize("command", USAGE)
def test_other_words_and_options_are_refused_by_typer(command, place):
    before = files(place)
    end = run(*command.split())
    assert (end.code, end.out) == (2, "")
    assert end.err.startswith("Usage: headroles ")
    assert end.err.endswith(f"Error: {USAGE[command]}\n")
    assert files(place) == before
