"""`keelog user` and `keelog acl`."""
