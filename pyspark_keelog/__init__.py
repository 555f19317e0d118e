"""Where Spark finds the format `keelog` by itself: it imports each `pyspark_…` on the path.

An error of this import would keep Spark from finding the sources of others.
"""

from contextlib import suppress

__all__ = ["DefaultSource"]

with suppress(ImportError):  # of a pyspark that has no Python sources, or others
    from keelog.pipeline.source import KeelogSource as DefaultSource
