"""Tests of node/supervisor/."""
