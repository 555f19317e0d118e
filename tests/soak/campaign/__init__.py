"""Random faults of every kind at nodes under load."""
