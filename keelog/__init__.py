"""The front door: what users import."""
