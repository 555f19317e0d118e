"""What a load found, added up and shown."""
