"""Commands that run Spark jobs."""
