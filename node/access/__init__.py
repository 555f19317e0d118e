"""Who may come to a node and do what: users and their lists, keys, TLS, the audit log."""
