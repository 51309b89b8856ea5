"""Statistics of head tables: roles, their relation to outcomes, resampling, multiple testing (no torch)."""
