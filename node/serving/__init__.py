"""The server side of the sockets that writer, readers and supervisor share."""
