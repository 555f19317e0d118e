"""Kills nodes and brokers under RocketMQ's own Java client."""
