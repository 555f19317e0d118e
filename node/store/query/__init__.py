"""Queries on an open store: pulls, look-ups by key, seeks by time."""
