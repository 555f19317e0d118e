"""The clock of a node under load is set by up to a day, round after round."""
