"""Tests of node/runtime/following."""
