"""RocketMQ's remoting protocol as pure code: bytes in, values out."""
