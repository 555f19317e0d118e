"""Sends broken requests to a node."""
