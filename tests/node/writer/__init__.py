"""Tests of node/writer/."""
