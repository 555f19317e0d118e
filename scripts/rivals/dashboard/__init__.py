"""RocketMQ's Dashboard at a Java broker and at a node with the same store, side by side."""
