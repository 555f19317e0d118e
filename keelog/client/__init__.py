"""The client of a node. It imports `protocol` alone."""
