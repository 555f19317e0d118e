"""Plans the repair of a damaged store. Only reads, but for the quarantine."""
