"""Scores from gradients at the heads' masks: importance, relevance, captum's methods."""
