"""Reads the ConsumeQueue files."""
