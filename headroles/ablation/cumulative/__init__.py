"""Cumulative ablation: heads that are masked one after the other, and how well scores predict what that costs."""
