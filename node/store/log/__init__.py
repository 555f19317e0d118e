"""Reads the CommitLog: its segments, its records, its end, and on after damage."""
