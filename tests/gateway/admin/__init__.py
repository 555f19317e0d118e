"""The requests of admin tools."""
