"""Scores from gradients with respect to the heads' masks: importance, relevance, captum's methods."""
