"""The reader process: pulls, long polling, look-ups."""
