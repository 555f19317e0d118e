"""Kills of nodes and brokers that copy each other."""
