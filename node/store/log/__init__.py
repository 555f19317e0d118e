"""Reads the CommitLog: its segments, its records, its end, and the records after damage."""
