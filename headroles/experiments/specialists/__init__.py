"""Specialists: translators whose encoders have specialised heads, by arms and seeds."""
