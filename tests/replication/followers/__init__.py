"""Tests of keelog/replication/followers/."""
