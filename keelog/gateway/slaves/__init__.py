"""What RocketMQ's slaves and tools ask of a master beside its log."""
