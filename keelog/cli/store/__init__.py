"""Commands on a store directory, without a node."""
