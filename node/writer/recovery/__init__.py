"""Finds the end of the log and the next offset of each queue at a start."""
