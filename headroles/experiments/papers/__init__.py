"""The papers' artefacts: each figure and table, its claim and its verdict."""
