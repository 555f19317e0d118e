"""Transactions: half messages, their ends, and the questions to producers about open ones."""
