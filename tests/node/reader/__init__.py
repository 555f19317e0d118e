"""Tests of node/reader/."""
