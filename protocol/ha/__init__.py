"""RocketMQ's replication as pure code: bytes in, values out."""
