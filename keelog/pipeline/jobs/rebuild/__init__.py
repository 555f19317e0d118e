"""Makes queue and index files anew from the log, in tasks."""
