"""Corpora: sentences, dependency trees, readers, parsers, synthetic text (no torch)."""
