"""RocketMQ's mqadmin commands, as ours."""
