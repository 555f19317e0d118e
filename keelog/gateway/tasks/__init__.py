"""What a broker does by itself: it delivers delayed messages."""
