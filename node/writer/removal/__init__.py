"""Removing topics and purging queues, while the log keeps their bytes."""
