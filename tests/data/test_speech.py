"""Sound: files, bytes and samples of any rate and number of channels; words with times that agree with both."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from helpers import spoken

import headroles as hr
from headroles.data.sentences import Speech
from headroles.data.speech import Sound, timed

TEXT = "Printing, in the 'only' sense"


def test_rows_have_sound_transcript_and_the_time_of_each_word(tmp_path):
    corpus = spoken.corpus(tmp_path)
    assert [sentence.text for sentence in corpus] == list(spoken.TEXTS)
    first = corpus[0]
    assert isinstance(first, Speech)
    assert first.sound.seconds == 0.4
    assert first.spans == first.target.spans == ((0, 1), (2, 3), (4, 5))
    np.testing.assert_allclose(first.times, [(0, 0.4 / 3), (0.4 / 3, 0.8 / 3), (0.8 / 3, 0.4)])
    assert first.links == ((0, 0), (1, 1), (2, 2))


def test_a_folder_a_list_and_a_data_set_give_the_same_corpus(tmp_path):
    rows = [{name: row[name] for name in ("audio", "text")} for row in spoken.rows(tmp_path)]
    for row in rows:
        (tmp_path / row["audio"]).with_suffix(".txt").write_text(row["text"] + "\n")
    absolute = [row | {"audio": str(tmp_path / row["audio"])} for row in rows]
    expected = hr.read(tmp_path)
    assert [sentence.sound.seconds for sentence in expected] == list(spoken.LENGTHS)
    assert hr.Corpus.of(absolute).hash == expected.hash
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(absolute).cast_column("audio", datasets.Audio())
    assert hr.Corpus.of(table).hash == expected.hash
    in_bytes = [row | {"audio": {"bytes": (tmp_path / row["audio"]).read_bytes(), "path": None}} for row in rows]
    assert hr.Corpus.of(in_bytes).hash == expected.hash
    decoded = [soundfile.read(tmp_path / row["audio"], dtype="float32") for row in rows]
    arrays = [{"audio": dict(zip(("array", "sampling_rate"), pair, strict=True)), "text": row["text"]}
              for pair, row in zip(decoded, rows, strict=True)]  # fmt: skip
    assert hr.Corpus.of(arrays).hash == expected.hash


def test_the_hash_is_of_samples_and_not_of_places(tmp_path):
    corpus = spoken.corpus(tmp_path)
    (tmp_path / "0.wav").rename(tmp_path / "moved.wav")
    rows = spoken.rows(tmp_path)
    (tmp_path / "0.wav").unlink()
    moved = spoken.read(tmp_path, [rows[0] | {"audio": "moved.wav"}, *rows[1:]])
    assert moved.hash == corpus.hash
    louder = spoken.corpus(tmp_path, level=0.4)
    assert louder.hash != corpus.hash


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (44_100, 2), (16_000, 2)])
def test_sound_of_any_rate_and_number_of_channels_is_read_as_sixteen_thousand_of_one(tmp_path, rate, channels):
    soundfile.write(tmp_path / "tone.wav", spoken.tone(0.5, rate, channels=channels), rate)
    samples = Sound.of("tone.wav", "row 1", tmp_path).samples(16_000)
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples[800:-800], spoken.tone(0.5)[800:-800], atol=2e-3)


def test_silence_and_clipped_sound_are_read(tmp_path):
    for name, samples in (("silent", np.zeros(1600)), ("clipped", np.clip(spoken.tone(0.1, level=9), -1, 1))):
        soundfile.write(tmp_path / f"{name}.wav", samples, 16_000)
        assert Sound.of(f"{name}.wav", "row 1", tmp_path).seconds == 0.1


@pytest.mark.parametrize(
    ("words", "spans"),
    [
        (["Printing,", "in", "the", "'only'", "sense"], ["Printing,", "in", "the", "only'", "sense"]),
        (["PRINTING", "IN", "THE", "ONLY", "SENSE"], ["Printing", "in", "the", "only", "sense"]),
        (["print", "ing", "—", "in"], ["Print", "ing", None, "in"]),
    ],
)
def test_words_are_those_of_the_transcript_whatever_their_case_and_punctuation(words, spans):
    rows = [{"word": word, "start": place, "end": place + 1} for place, word in enumerate(words)]
    places, times = timed(rows, TEXT, 9.0, "row 1")
    assert [span and TEXT[slice(*span)] for span in places] == spans
    assert times == tuple(span and (place, place + 1) for place, span in enumerate(spans))


def test_a_word_without_times_is_a_word_and_has_no_link(tmp_path):
    (row, *_) = spoken.rows(tmp_path)
    row["words"][1] |= {"start": None}
    (sentence,) = spoken.read(tmp_path, [row])
    assert sentence.times[1] is None
    assert sentence.links == ((0, 0), (2, 2))
    assert len(sentence.spans) == 3


def row_with(tmp_path, **fields):
    (row, *_) = spoken.rows(tmp_path)
    return row | fields


def word(text="a", start=0.0, end=0.1):
    return {"word": text, "start": start, "end": end}


REFUSED = {
    "a missing file": ({"audio": "no.wav"}, "row 1: no sound at .*no.wav"),
    "text in its place": ({"audio": "text.wav"}, "row 1: the sound cannot be read: .*text.wav"),
    "no samples": ({"audio": "empty.wav"}, "row 1: the sound must have finite samples, got none"),
    "no path": ({"audio": 7}, "row 1 must have the path of a sound in audio, got 7"),
    "words of another transcript": ({"words": [word(), word("z")]}, "word 2 of the list is 'z', but .* with 'b c'"),
    "words that are strings": ({"words": ["a"]}, "words must have word, start and end, got 'a'"),
    "a word after the end": ({"words": [word(end=0.9)]}, "word 1, 'a', .* within 0.40 seconds, got 0.0 to 0.9"),
    "a word before the start": ({"words": [word(start=-1)]}, "word 1, 'a', .* got -1 to 0.1"),
    "a word backwards": ({"words": [word(start=0.2)]}, "got 0.2 to 0.1"),
    "words backwards": ({"words": [word(start=0.2, end=0.3), word("b")]}, "word 2, 'b', .* got 0.0 to 0.1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_row_that_cannot_be_right_is_refused_in_a_sentence(tmp_path, case):
    fields, said = REFUSED[case]
    row = row_with(tmp_path, **fields)
    (tmp_path / "text.wav").write_text("hello")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16_000)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        spoken.read(tmp_path, [row])


def test_words_may_overlap_and_end_a_little_late(tmp_path):
    row = row_with(tmp_path, words=[word(end=0.3), word("b", 0.2, 0.45)])
    (sentence,) = spoken.read(tmp_path, [row])
    assert sentence.times == ((0.0, 0.3), (0.2, 0.4))


def test_a_sound_in_a_folder_needs_a_transcript(tmp_path):
    soundfile.write(tmp_path / "a.wav", spoken.tone(0.1), 16_000)
    with pytest.raises(FileNotFoundError, match=r"no transcript at .*a\.txt, for a\.wav"):
        hr.read(tmp_path)
    with pytest.raises(ValueError, match=r"must be given by itself, got .*b\.txt; try a \.jsonl with"):
        hr.read(tmp_path, tmp_path / "b.txt")


def test_a_package_that_is_missing_is_said_with_the_extra(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", spoken.tone(0.1), 16_000)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setattr("headroles.data.speech.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"soundfile, which reads sound.*pip install 'headroles\[audio\]'"):
        Sound.of("a.wav", "row 1", tmp_path)


def test_sound_is_no_text_of_a_data_set(tmp_path):
    with pytest.raises(ValueError, match="must be texts, got token ids or sound in corpus"):
        hr.to_dataset(spoken.corpus(tmp_path))


def test_equal_samples_are_equal_sounds(tmp_path):
    sound = spoken.corpus(tmp_path)[0].sound
    assert sound == replace(sound, source=b"")
