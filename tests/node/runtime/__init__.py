"""Tests of node/runtime/."""
