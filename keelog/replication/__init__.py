"""Copies of the log on other machines, by RocketMQ's replication."""
