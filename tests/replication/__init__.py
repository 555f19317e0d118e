"""Tests of keelog/replication/."""
