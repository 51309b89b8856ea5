"""A bilingual tokenizer reads sources by one vocabulary, and reads and writes targets by another."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headroles.models.tokens.bilingual import TARGET, Bilingual, load, paired


def words(*known, longest):
    ids = {word: number for number, word in enumerate(("<pad>", "<unk>", *known))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options = {"pad_token": "<pad>", "unk_token": "<unk>", "model_max_length": longest}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


ENGLISH, GERMAN = words("the", "cat", "sees", longest=9), words("sieht", "die", "Katze", longest=7)


def assert_both(tokenizer):
    assert tokenizer("the cat").input_ids == ENGLISH("the cat").input_ids == [2, 3]
    assert tokenizer(text_target="die Katze").input_ids == GERMAN("die Katze").input_ids == [3, 4]
    assert tokenizer("the sees die", text_target="sieht the")["labels"] == [2, 1]
    assert tokenizer("sees die").input_ids == [4, 1]  # a source again, in which the other language is unknown
    assert tokenizer.decode([3, 4]) == "die Katze"
    assert tokenizer.model_max_length == 7


def test_each_side_is_read_as_by_its_own_tokenizer():
    assert_both(paired(ENGLISH, GERMAN))
    assert ENGLISH("the sieht").input_ids == [2, 1]  # which are left as they were
    assert GERMAN.decode([2]) == "sieht"


def test_it_comes_back_from_its_folder(tmp_path):
    paired(ENGLISH, GERMAN).save_pretrained(tmp_path)
    assert (tmp_path / TARGET).is_file()
    assert_both(load(tmp_path))
    assert type(PreTrainedTokenizerFast.from_pretrained(tmp_path)) is not Bilingual
    (tmp_path / TARGET).unlink()
    assert load(tmp_path) is None
