"""Commands that run load tests."""
