"""Experiments: pipelines over a study, the papers' figures and tables, replication from scratch."""
