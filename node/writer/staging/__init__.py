"""Batches that are staged beside the log and published once."""
