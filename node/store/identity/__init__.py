"""Which directory is this store, who made it, and who runs it."""
