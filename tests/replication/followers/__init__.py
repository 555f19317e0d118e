"""Tests of replication/followers/."""
