"""What the gateway counts of itself."""
