"""Makes units and index entries in memory that the log has and the files lack."""
