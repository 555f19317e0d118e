"""The base of every process of a node: start, logs, locks, settings, disk, pages, bells."""
