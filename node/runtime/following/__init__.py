"""What the processes of a node that follows a master share."""
