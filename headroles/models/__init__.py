"""Models: loading, their attention sites, masks on heads, captured attention, batches."""
