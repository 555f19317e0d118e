"""Reads what comes: how far each micro-batch goes, what of it is lost, what its tasks read."""
