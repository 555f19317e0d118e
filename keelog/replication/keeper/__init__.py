"""Does what a controller says: it has a node lead or follow, and watches over its followers."""
