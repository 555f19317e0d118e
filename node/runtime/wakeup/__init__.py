"""How one process of a node wakes another that sleeps."""
