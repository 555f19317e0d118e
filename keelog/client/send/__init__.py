"""The way of a message from a caller to a request: encoded, gathered, sent."""
