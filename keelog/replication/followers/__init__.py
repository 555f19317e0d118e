"""Serves those who follow the node: RocketMQ's slaves, and replicas of Keelog."""
