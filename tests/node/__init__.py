"""Tests of the node's own processes."""
