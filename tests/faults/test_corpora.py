"""Corpora that are no text, or more text than fits into memory, are refused with the reason."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
import torch
import transformers
from helpers.messages import whole
from tokenizers import Tokenizer, models, pre_tokenizers

import headroles as hr
from headroles.data.corpus import Corpus, Sentence

ROW = "{0}\t{1}\t_\tNOUN\t_\t_\t{2}\t{3}\t_\t_\n"
GOOD = ROW.format(1, "dogs", 2, "nsubj") + ROW.format(2, "sleep", 0, "root") + "\n"


def withheld(size, text="# text = _\n"):
    """A sentence of a treebank that comes without its text."""
    return text + "".join(ROW.format(i, "_", i - 1, "dep" if i > 1 else "root") for i in range(1, size + 1)) + "\n"


@pytest.mark.parametrize("text", ["", "# text = _ _ _\n", "# text = withheld\n"])
def test_treebanks_without_their_text_are_refused(tmp_path, text):
    path = tmp_path / "withheld.conllu"
    path.write_text(GOOD + withheld(3, text))
    message = (
        f"{path}, line 4: all 3 words of the sentence that starts here are '_': its licence withholds the text; "
        "expected words; try the script in the treebank's repository that adds them"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.read(path)


def test_multiword_tokens_of_words_that_are_not_spelt_are_read(tmp_path):
    path = tmp_path / "du.conllu"
    range_line = "1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n"
    path.write_text(range_line + withheld(2, ""))
    assert hr.read(path)[0].text == "du"
    path.write_text(ROW.format(1, "_", 0, "root") + "\n")  # an underscore may be a word
    assert hr.read(path)[0].text == "_"
    path.write_text(ROW.format(1, "_", 2, "nsubj") + ROW.format(2, "sleeps", 0, "root") + "\n")
    assert hr.read(path)[0].text == "_ sleeps"


def test_a_small_file_that_unpacks_to_one_huge_sentence_is_refused_in_bounded_memory(tmp_path):
    path = tmp_path / "bomb.conllu.gz"
    line = b"# " + b"x" * 2**19 + b"\n"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(GOOD.encode())
        for _ in range(256):  # 128 MiB, of a sentence that would have 50 GiB within its 100,000 lines
            file.write(line)
    assert path.stat().st_size < 2**20
    message = (
        f"{path}, line 4: the sentence that starts here is too long: got more than 8388608 characters; expected a "
        "blank line after each sentence"
    )
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=whole(message)):
            hr.read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("encoder", "decoder", "said"), [(20, 32, "20 (targets: 32)"), (32, 20, "32 (targets: 20)"), (20, 20, "20")]
)
def test_texts_past_the_positions_of_either_part_of_a_model_are_left_out(encoder, decoder, said, caplog):
    shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    parts = [
        transformers.BertConfig(**shape, intermediate_size=48, max_position_embeddings=n) for n in (encoder, decoder)
    ]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(config=config).eval()
    inner = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w3"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0")
    text = " ".join(["w5"] * min(encoder, decoder))
    fits, longer = Sentence(text, target=Sentence(text)), Sentence(f"{text} w5", target=Sentence(f"{text} w5"))
    found = [
        hr.score(model, tokenizer, Corpus("c", sentences), ["confidence"], n_resamples=0)["confidence"].tolist()
        for sentences in ((fits,), (fits, longer))
    ]
    assert found[0] == found[1]
    assert f"1 of 2 sentences left out: longer than {said} tokens" in caplog.text
