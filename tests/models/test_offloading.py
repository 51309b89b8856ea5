"""Where weights are: on a disk by a device_map, in 16 bits, and beside what a killed run left of them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.commands import run
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.models import identity

# transformers puts Marian's bias of words, which belongs to no submodule, into its own map
pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys do not match")
NAMES = ["llama-grouped", "marian"]


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory):
    """A checkpoint of a tiny model."""
    place = tmp_path_factory.mktemp(request.param)
    model = zoo.tiny(request.param)
    model.config.name_or_path = ""
    return hr.save(model, tokens_of(request.param), place / "model")


@pytest.fixture
def whole(folder):
    return hr.load(folder)


@pytest.fixture
def offloaded(folder, whole, tmp_path):
    size = sum(value.nbytes for value in whole[0].state_dict().values())
    options = {"device_map": "auto", "max_memory": {"cpu": int(0.7 * size)}, "offload_folder": str(tmp_path / "disk")}
    model, _ = hr.load(folder, **options)
    assert identity.is_offloaded(model)
    assert not identity.is_offloaded(whole[0])
    return model


@pytest.mark.slow
def test_scores_and_ablation_are_the_same_with_weights_on_a_disk(whole, offloaded):
    for asked in (["confidence", "importance", "relevance"], None):
        expected, found = (hr.score(one, whole[1], corpus(8), asked, n_resamples=20) for one in (whole[0], offloaded))
        pd.testing.assert_frame_equal(found, expected, rtol=0, atol=0)
        assert found.attrs["signatures"] == expected.attrs["signatures"]
    expected, found = (hr.ablate(one, whole[1], corpus(8), n_resamples=20) for one in (whole[0], offloaded))
    pd.testing.assert_frame_equal(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
def test_removing_heads_of_offloaded_weights_raises(offloaded):
    message = f"heads cannot be removed from {type(offloaded).__name__}: its weights are offloaded; load it whole"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hr.remove_heads(offloaded, [])


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["llama-grouped", "marian"], indirect=True)
def test_numbers_of_16_bits_give_nearly_the_same(folder, whole):
    half, tokenizer = hr.load(folder, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    asked = ["confidence", "entropy", "sink", "importance"]
    expected, found = (hr.score(one, tokenizer, corpus(8), asked, n_resamples=0) for one in (whole[0], half))
    near = [name for name in expected if name != "importance"]
    np.testing.assert_allclose(found[near], expected[near], atol=0.02)
    assert found["importance"].corr(expected["importance"], method="spearman") > 0.9
    effects = [hr.ablate(one, tokenizer, corpus(8), n_resamples=0)["ablation[loss]"] for one in (whole[0], half)]
    assert effects[0].corr(effects[1]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["marian"], indirect=True)
def test_the_command_takes_a_device_map_and_numbers_of_16_bits(folder, tmp_path):
    text = tmp_path / "text.tsv"
    text.write_text("".join(f"{one.text}\t{one.target.text}\n" for one in corpus(3)))
    asked = ["--scores", "confidence", "--resamples", "0", "--device", "auto", "--dtype", "bfloat16"]
    done = run("score", folder, text, "--study", tmp_path / "study", *asked)
    assert done.code == 0, done.err
    told = hr.provenance(hr.Study(tmp_path / "study").load("heads"), "confidence")
    half, _ = hr.load(folder, dtype=torch.bfloat16)
    assert f"weights:{identity.weights_digest(half)}|" in told
