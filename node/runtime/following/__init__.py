"""What a node's processes tell each other when the node follows a master."""
