"""What the processes of a node count, in files that outlive them."""
