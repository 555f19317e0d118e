"""What RocketMQ's tools ask: messages by id and key, settings of groups."""
