"""Where Spark finds the format `keelog` by itself: it imports each `pyspark_…` on the path."""

from pipeline.source import KeelogSource as DefaultSource

__all__ = ["DefaultSource"]
