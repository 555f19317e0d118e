"""What runs for minutes or hours: kills, streams, fuzz, campaigns, power losses."""
