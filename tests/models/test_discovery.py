"""Discovery finds the sites that the config says, and leaves no trace."""

from __future__ import annotations

import pytest
from helpers import zoo
from helpers.traces import NAMES, _traces

import headroles as hr


@pytest.mark.parametrize("name", zoo.each(NAMES))
def test_sites_are_those_the_config_says(name):
    found = hr.attention_sites(zoo.tiny(name))
    assert sorted((site.kind, site.layer, site.heads, site.kv_heads, site.size) for site in found) == zoo.EXPECTED[name]
    assert all(site.out is not None for site in found)


@pytest.mark.parametrize("name", ["bert", "llama-grouped", "marian"])
def test_discovery_leaves_no_trace(name):
    model = zoo.tiny(name).train()
    before = _traces(model)
    hr.attention_sites(model)
    assert _traces(model) == before


def test_a_shared_module_is_one_site_per_call():
    first, second = hr.attention_sites(zoo.tiny("albert"))
    assert first.module is second.module
    assert (first.call_index, first.layer, second.call_index, second.layer) == (0, 0, 1, 1)
