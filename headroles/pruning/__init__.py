"""Pruning: which heads go, how models learn to do without them, and how they are cut out."""
