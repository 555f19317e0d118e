"""The HTTP server of a node: probes, health and metrics."""
