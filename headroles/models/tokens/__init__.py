"""Tokens: their words, languages of translators, and checks that a tokenizer and a model agree."""
