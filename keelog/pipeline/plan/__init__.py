"""Plans a read: which rows of which files each task reads."""
