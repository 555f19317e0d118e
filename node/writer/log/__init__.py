"""The CommitLog under its one writer: segments, room ahead, flushing, retention."""
