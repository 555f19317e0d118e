"""Exports messages as Parquet, by topic and day."""
