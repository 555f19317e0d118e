"""Checks that the files of a store agree with each other; read-only."""
