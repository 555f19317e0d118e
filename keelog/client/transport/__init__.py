"""Connections to the processes of a node, and requests on their way over them."""
