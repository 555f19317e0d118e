"""Access control of a node, looked at from outside: strangers, revoked users, and what it costs."""
