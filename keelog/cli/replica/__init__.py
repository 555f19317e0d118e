"""Commands on the store of a replica."""
