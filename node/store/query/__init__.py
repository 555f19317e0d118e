"""Answers out of an open store: pulls, look-ups by key, seeks by time."""
