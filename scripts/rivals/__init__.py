"""Keelog beside the real RocketMQ."""
