"""Load tests: the same as `keelog bench`."""
