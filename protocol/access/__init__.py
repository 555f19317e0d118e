"""Who may do what: access lists, signatures, and what each request needs. Pure functions."""
