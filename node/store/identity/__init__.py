"""The identity of a store: its id, its role, and the places of its own files."""
