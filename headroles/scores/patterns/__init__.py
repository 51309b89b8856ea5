"""Scores of attention patterns, one file each."""
