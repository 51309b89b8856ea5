"""Ablation: the effect of masking heads on a metric, with intervals and tests."""
