"""What two processes must agree on: bytes in, values out. No files, sockets, clock or threads."""
