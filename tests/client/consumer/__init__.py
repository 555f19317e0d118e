"""Tests of the member of a consumer group."""
