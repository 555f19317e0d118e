"""Tests of keelog/gateway/."""
