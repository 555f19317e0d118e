"""What clusters of nodes carry, computed from measured costs and simulated on paper."""
