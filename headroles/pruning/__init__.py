"""Pruning: choose heads to remove, by a ranking or by learnt gates, and remove them from the weights."""
