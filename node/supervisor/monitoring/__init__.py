"""The HTTP end of a node: probes, health and metrics."""
