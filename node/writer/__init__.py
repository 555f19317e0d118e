"""The writer process: owns the CommitLog and takes appends."""
