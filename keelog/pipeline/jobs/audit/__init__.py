"""Holds a whole store against itself, in tasks."""
