"""The node's own processes: supervisor, writer and reader, and the client that talks to them."""
