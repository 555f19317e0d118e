"""What is derived from the log: queue units, index entries, and the plans that place them."""
