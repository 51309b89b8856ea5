"""Scores from the weights alone: what heads read and write, without a corpus."""
