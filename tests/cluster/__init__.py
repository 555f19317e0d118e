"""Tests of several nodes and brokers that copy each other's logs: `make cluster`."""
