"""What a gateway knows of members beside their connections."""
