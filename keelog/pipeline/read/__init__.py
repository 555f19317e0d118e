"""Reads parts of a store as rows of Arrow."""
