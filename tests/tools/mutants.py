"""Change one thing at a time in the library, and see whether a test fails.

    python tests/tools/mutants.py --minutes 60 --output figures/engineering/quality

Mutated are `scores/`, `models/masking.py`, `analysis/role_rules.py` and `analysis/association.py`: comparisons,
arithmetic, and/or, constants, texts, statements and options that are left out, what is returned. Tests are collected
once. For each mutant the process is forked, the changed function gets its new code there, and the tests of the whole
suite that reach the changed line run, those of its package and quick ones first, until one fails; a test that fails in
a fork without a mutant too is left out. (mutmut leaves decorated functions and constants of modules out;
cosmic-ray starts Python anew for each mutant, which takes ten seconds here.)

`mutants.csv` has a row for each mutant; those in it are not run again, so the command goes on where it was stopped
(`--again` runs the survivors again, as after a new test). `mutation.json` has the counts, and each survivor with the
`reason` why it may survive: write it there, the next run keeps it.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import mkdtemp
from types import CodeType, FunctionType, ModuleType

ROOT = Path(__file__).resolve().parents[2]
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
os.chdir(ROOT)
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import coverage  # noqa: E402
import pytest  # noqa: E402
from tools.mutations import again, change, done, key, mutants, noted  # noqa: E402

MUTATED = (
    *("models/masking", "analysis/role_rules", "analysis/association"),
    *(
        str(path.relative_to(ROOT / "headroles").with_suffix(""))
        for path in sorted(ROOT.glob("headroles/scores/**/[a-z]*.py"))
    ),
)
WORK = Path(mkdtemp(prefix="mutants-"))
SAID = WORK / "by"  # the test that failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long; mutants come in an order drawn")
    parser.add_argument("--seed", type=int, default=0, help="by this")
    parser.add_argument("--only", help="files such as masking or scores/runner, separated by commas; by default all")
    parser.add_argument("--seconds", type=float, default=40, help="of tests for each mutant, quick ones first")
    parser.add_argument("--again", action="store_true", help="run the survivors again")
    parser.add_argument("--same", type=Path, help="only the mutants of this mutants.csv whose line still stands")
    parser.add_argument("--output", type=Path, required=True, help="the folder of mutants.csv and mutation.json")
    parser.add_argument("--map", type=Path, help="which test reaches which line is kept here, or taken from here")
    asked = parser.parse_args()
    files = asked.only.split(",") if asked.only else MUTATED
    rows = done(asked.output / "mutants.csv")
    every = {module: list(mutants(module, source(module))) for module in MUTATED}
    drawn = [one for module in files for one in every[module]]
    if asked.same:
        earlier = {change(row) for row in done(asked.same).values()}
        drawn = [one for one in drawn if change(one[0]) in earlier]
    random.Random(asked.seed).shuffle(drawn)
    ahead = [(row, tree) for row, tree in drawn if key(row) not in rows or (asked.again and again(rows[key(row)]))]
    ahead.sort(key=lambda one: key(one[0]) not in rows)  # survivors first
    reached = mapped(asked.map)
    rows = {key(row): rows[key(row)] for found in every.values() for row, _ in found if key(row) in rows}
    whole = {module: len(found) for module, found in every.items()}
    until = time.monotonic() + 60 * asked.minutes

    class Loop(First):
        def pytest_runtestloop(self, session):
            preloaded(reached["modules"])
            items, functions = {item.nodeid: item for item in session.items}, functions_of_ours()
            sound: set[str] = set()  # tests that pass in a fork without a mutant
            for number, (row, tree) in enumerate(ahead, start=1):
                if time.monotonic() > until:
                    break
                while True:
                    tests = [items[test] for test in chosen(row, reached, items, asked.seconds)]
                    row |= tried(row, tree, tests, functions)
                    test = str(row["by"])
                    if test not in items or test in sound:
                        break
                    if forked(lambda test=test: run([items[test]]))[0] == 0:
                        sound.add(test)
                        break
                    print(f"left out, as it fails without a mutant: {test}", flush=True)
                    del items[test]
                rows[key(row)] = row
                what = f"{row['module']}:{row['line']} {row['before']} -> {row['after']}"
                print(f"{number}/{len(ahead)} {what}: {row['ended']} {row['by']} {row['seconds']}", flush=True)
                if number % 20 == 0:
                    noted(rows, whole, asked)
            return True

    if ahead:
        pytest.main([*OPTIONS, "-s", f"--basetemp={WORK}/tests", "tests"], plugins=[Loop()])
    noted(rows, whole, asked)


class First:
    def pytest_runtest_logreport(self, report):  # in a fork
        if report.failed:
            SAID.write_text(report.nodeid)
            os._exit(1)


def source(module: str) -> Path:
    return ROOT / "headroles" / f"{module}.py"


def mapped(kept: Path | None) -> dict[str, object]:
    """Which tests reach which line, how long each takes, and the modules that they import."""
    path = kept or WORK / "map"
    if not path.exists():
        if os.fork() == 0:
            _map(path)
            os._exit(0)
        os.wait()
    return json.loads(path.read_text())


def _map(path: Path):
    measured = coverage.Coverage(data_file=None, include=[str(source(one)) for one in MUTATED], config_file=False)
    took: dict[str, float] = {}

    class Contexts:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item):
            measured.switch_context(item.nodeid)
            forget(item.module)
            began = time.perf_counter()
            result = yield
            took[item.nodeid] = time.perf_counter() - began
            return result

    measured.start()
    pytest.main([*OPTIONS, "tests"], plugins=[Contexts()])
    measured.stop()
    data = measured.get_data()
    lines = {module: data.contexts_by_lineno(str(source(module))) for module in MUTATED}
    path.write_text(json.dumps({"lines": lines, "took": took, "modules": sorted(sys.modules)}))


def forget(module: ModuleType):
    """What tests of a file keep for each other: each is to reach the lines it rests on."""
    for one in vars(module).values():
        if hasattr(one, "cache_clear"):
            one.cache_clear()


OPTIONS = ("-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "")


def ours(name: str) -> bool:
    first = name.partition(".")[0]
    return any((place / first).is_dir() for place in (ROOT, ROOT / "tests")) or first == "conftest"


def preloaded(modules: list[str]):
    """Import what the tests import when they run."""
    for name in modules:
        if not ours(name):
            with suppress(BaseException), warnings.catch_warnings(action="ignore"):
                importlib.import_module(name)


def chosen(row: dict, reached: dict, items: Collection[str], seconds: float) -> list[str]:
    """Tests that reach a line, so many seconds of them (of each first its quickest parameters), and new ones."""
    lines, took = reached["lines"][row["module"]], reached["took"]
    found = set(lines.get(str(row["line"]), ())) - {""} or set().union(*map(set, lines.values())) - {""}
    folder = f"tests/{row['module'].partition('/')[0]}/"
    new = [test for test in items if test not in took and test.startswith(folder)]
    rounds, seen = {}, Counter()
    for test in sorted(found & set(took) & set(items), key=lambda test: took[test]):
        rounds[test] = seen[test.partition("[")[0]]
        seen[test.partition("[")[0]] += 1
    old = []
    for test in sorted(rounds, key=lambda test: (rounds[test], took[test])):
        seconds -= took[test]
        if seconds > 0 or not old:
            old.append(test)
    return new + sorted(old, key=lambda test: (rounds[test] > 0, not test.startswith(folder), took[test]))


def functions_of_ours() -> dict[tuple[str, str, int], list[FunctionType]]:
    """The functions that may be changed: those of a file, a name and a first line."""
    paths, found = {str(source(module)) for module in MUTATED}, defaultdict(list)
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename in paths:
            found[place_of(one.__code__)].append(one)
    return found


def place_of(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def tried(row: dict, tree: ast.Module, tests: list[pytest.Item], functions: dict) -> dict[str, object]:
    """Run the tests on a mutant in a fork until one fails."""
    code = compile(tree, source(row["module"]), "exec")
    status, seconds = forked(lambda: run_changed(row, code, tests, functions))
    ended = "timeout" if os.WIFSIGNALED(status) else "killed" if status else "survived"
    by = SAID.read_text() if SAID.exists() else "import" if ended == "killed" else ""
    return {"ended": ended, "by": by, "seconds": round(seconds, 1)}


def forked(act: Callable[[], None]) -> tuple[int, float]:
    """Call in a fork, which ends with 0 if it returns; the status of the process, and seconds."""
    began = time.perf_counter()
    SAID.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(150)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        with suppress(BaseException):
            act()
            os._exit(0)
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # commands that a test had started
    return status, time.perf_counter() - began


def run(tests: list[pytest.Item]):
    """Run tests; the first that fails ends the process (`First`)."""
    for item, after in zip(tests, [*tests[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


def run_changed(row: dict, code: CodeType, tests: list[pytest.Item], functions: dict):
    """Change the function, or import all anew where more than a function is changed, and run the tests."""
    code_of = {place_of(one): one for one in codes(code)}
    changed = [place for place, held in functions.items() if place in code_of and code_of[place] != held[0].__code__]
    fits = [len(code_of[place].co_freevars) == len(functions[place][0].__code__.co_freevars) for place in changed]
    if row["where"] and len(changed) == 1 and all(fits):
        for one in functions[changed[0]]:
            one.__code__ = code_of[changed[0]]
        run(tests)
        return
    usual = SourceFileLoader.get_code

    def get_code(self, name):
        return code if self.path == str(source(row["module"])) else usual(self, name)

    SourceFileLoader.get_code = get_code
    for name in [name for name in sys.modules if ours(name)]:
        del sys.modules[name]
    options = [*OPTIONS, "-x", f"--basetemp={WORK}/tests", *(item.nodeid for item in tests)]
    os._exit(int(pytest.main(options, plugins=[First()])))


def codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from codes(one)


if __name__ == "__main__":
    main()
