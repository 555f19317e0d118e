"""Tests of keelog/client/."""
