"""Gathers what helps to find out what is wrong with a node."""
