"""Holds a whole store against itself, read-only."""
