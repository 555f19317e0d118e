"""Who may come to a node: users, keys, TLS."""
