"""Plans the repair of a damaged store. Only reads."""
