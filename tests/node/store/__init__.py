"""Tests of reading a store, and of our own files in it."""
