"""Delivers timer messages at their times, and keeps RocketMQ's files of them."""
