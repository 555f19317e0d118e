"""A gateway at a node that follows a master."""
