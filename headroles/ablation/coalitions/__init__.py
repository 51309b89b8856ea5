"""Coalitions of heads: Shapley values and interactions, with the metric of a masked model as their worth."""
