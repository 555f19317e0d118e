"""Benchmarks of parts."""
