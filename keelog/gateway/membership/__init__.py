"""What a gateway knows of the members of groups beside their connections."""
