"""The supervisor: starts, watches and stops the processes of a node."""
