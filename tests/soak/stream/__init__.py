"""Kills streaming queries in all their parts."""
