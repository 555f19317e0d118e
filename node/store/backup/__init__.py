"""Backups of a store: what is copied, where it ends, and the folder that keeps it."""
