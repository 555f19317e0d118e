"""The result of a load, added up and shown."""
