"""Tokens: their words, the tokenizer with two vocabularies, and what a tokenizer and a model must agree on."""
