"""Tests of replication/."""
