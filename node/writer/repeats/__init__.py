"""Repeated unique keys: a message that was stored a moment ago is answered, not stored again."""
