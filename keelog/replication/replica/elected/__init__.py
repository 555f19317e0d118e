"""A replica whose master a controller elects."""
