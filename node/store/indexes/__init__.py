"""Reads the IndexFile files."""
