"""The identity of a store: its id, the places of its own files, the process that runs it."""
