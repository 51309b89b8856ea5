"""Weights: those that a checkpoint lacks, those stored in a few bits, and those spread over processes."""
