"""Spark on the files of a store: batch sources over directories, ours or a broker's."""
