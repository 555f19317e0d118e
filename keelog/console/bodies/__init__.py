"""Bodies of messages for people: as JSON, text, msgpack or bytes, never as HTML."""
