"""A member of a consumer group: RocketMQ's protocol, spoken to the node's gateway."""
