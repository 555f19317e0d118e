"""The gateway: serves RocketMQ's own clients, over the remoting protocol."""
