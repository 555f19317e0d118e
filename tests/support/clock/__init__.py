"""A wall clock of their own for a node's processes, which a test sets while they run."""
