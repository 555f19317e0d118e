"""The console: a node's state, topics, messages and groups in a browser."""
