"""Messages on their way in: checks, properties, records, and the way to the writer."""
