"""The command cache-budget: its table is the function's, files are in the study, a second run measures nothing."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from helpers.commands import run
from helpers.messages import line

import headroles as hr
from headroles.budgets.calibration import Calibration
from headroles.cli import cache_budgets

NUMBERS = ["--keep", 2, "--sink", 2, "--recent", 3, "--points", 2]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A small decoder that reads words and digits."""
    folder = tmp_path_factory.mktemp("decoder")
    tokenizer = hr.load("minilm")[1]
    options = {"num_key_value_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 512}
    hr.tiny_model("llama", **options).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path):
    """Texts with answers, as a table and as JSON lines."""
    rows = [("The key of the barn is red . Which key ?", "red"), ("He has a dog and a cat . What has he ?", "a dog")]
    (tmp_path / "texts.tsv").write_text("".join(f"{text}\t{answer}\n" for text, answer in rows))
    objects = [json.dumps({"text": text.replace(" . ", " .\n"), "answer": answer}) for text, answer in rows]
    (tmp_path / "texts.jsonl").write_text("\n".join(objects))
    return tmp_path


@pytest.mark.parametrize("name", ["texts.tsv", "texts.jsonl"])
def test_its_table_is_that_of_the_function(decoder, texts, name):
    done = run("cache-budget", decoder, texts / name, "--study", texts / "study", *NUMBERS)
    assert (done.code, done.err) == (0, "")
    table = hr.Study(texts / "study").load("budget-integrated-gradients")
    model, tokenizer = hr.load(decoder)
    expected = hr.cache_budget(model, tokenizer, hr.read(texts / name), keep=2, sink=2, recent=3, points=2)
    pd.testing.assert_frame_equal(table, expected)
    assert "2 of 4 groups keep their whole cache" in done.out
    assert "on the loss: above 0 is harm" in " ".join(done.out.split())
    assert hr.BudgetedCache(model, table).get_seq_length() == 0
    other = hr.tiny_model("llama", seed=1, num_key_value_heads=2, vocab_size=len(tokenizer))
    with pytest.raises(ValueError, match="the table is of another model"):
        hr.BudgetedCache(other, table)


def test_a_second_run_measures_nothing_and_exports(decoder, tmp_path, monkeypatch):
    command = ["cache-budget", decoder, "hidden-facts", "--length", 30, "--limit", 2, "--study", tmp_path, *NUMBERS]
    assert run(*command).code == 0
    monkeypatch.setattr(Calibration, "along_path", lambda *_: pytest.fail("measured again"))
    table = hr.Study(tmp_path).load("budget-integrated-gradients")
    for form, names in (
        ("duo", ["config.json", "full_attention_heads.tsv"]),
        ("kvpress", ["config.json", "full_attention_heads.tsv"]),
        ("vllm-hook", ["vllm-hook.json"]),
        ("json", ["budget.json"]),
    ):
        done = run(*command, "--export", form)
        assert (done.code, done.err) == (0, "")
        folder = tmp_path / f"budget-integrated-gradients-{form}"
        assert sorted(path.name for path in folder.iterdir()) == names
        assert str(folder / names[-1]) in done.out
        for path in hr.export_budget(table, tmp_path / "expected", form):
            assert path.read_bytes() == (folder / path.name).read_bytes()
    result = json.loads(run(*command, "--json").out)
    assert [row["effect"] for row in result["tables"][0]["rows"]] == pytest.approx(table["effect"].tolist())
    model, tokenizer = hr.load(decoder)
    haystack = hr.synthetic_corpus(cache_budgets.HAYSTACK)
    facts = hr.hidden_facts(tokenizer, 2, length=30, haystack=haystack)
    fields = dict(part.split(":", 1) for part in hr.provenance(table, "effect").split("|"))
    assert (fields["text"], fields["layers"], fields["shared"]) == (facts.hash, "2", "dec-self=2")


def test_options_of_hidden_facts_are_refused_for_other_texts(texts):
    given = run("cache-budget", "none", texts / "texts.tsv", "--length", 30, "--study", texts / "study")
    assert given == line("--length requires CORPUS hidden-facts")
    (texts / "plain.txt").write_text("One.\n")
    done = run("cache-budget", "none", texts / "nothing.tsv", "--study", texts / "study")
    assert done == line(f"no file at {texts / 'nothing.tsv'}")
    assert not (texts / "study").exists()
