"""Kills a node in part and as a whole, under load."""
