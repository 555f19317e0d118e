"""The demo: a node at work on real messages."""
