"""Tests of node/serving/."""
