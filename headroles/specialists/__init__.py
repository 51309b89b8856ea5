"""Specialists: translators trained, in several arms and seeds, to have specialised encoder heads."""
