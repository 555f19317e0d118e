"""Power losses and kills, played through on a simulated disk."""
