"""Tables of heads: their index, provenance, files, and the study folder that keeps them (no torch)."""
