"""Discovery finds the sites that the config says; that it leaves no trace, the blocks that begin with it show."""

from __future__ import annotations

import pytest
from helpers import zoo
from helpers.traces import NAMES

import headroles as hr


@pytest.mark.parametrize("name", zoo.each(NAMES))
def test_sites_are_those_the_config_says(name):
    found = hr.attention_sites(zoo.tiny(name))
    assert sorted((site.kind, site.layer, site.heads, site.kv_heads, site.size) for site in found) == zoo.EXPECTED[name]
    assert all(site.out is not None for site in found)


def test_a_shared_module_is_one_site_per_call():
    first, second = hr.attention_sites(zoo.tiny("albert"))
    assert first.module is second.module
    assert (first.call_index, first.layer, second.call_index, second.layer) == (0, 0, 1, 1)
