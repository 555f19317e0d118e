"""Tests of the console: pages, rights, and what a browser makes of them."""
