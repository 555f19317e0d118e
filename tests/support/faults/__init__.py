"""Disks that fail, lie, are slow or full, for processes that know nothing of it."""
