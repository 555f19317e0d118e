"""Tests of the tables of `config/`."""
