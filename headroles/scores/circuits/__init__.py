"""Circuits: what the weights alone say of heads, by the vocabulary and between layers."""
