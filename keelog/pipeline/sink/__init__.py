"""Writes to a running node: rows are staged by tasks and published once by the commit."""
