"""What a node asks of its clients, over the connections that they opened."""
