"""Commands that run, watch and administer a node."""
