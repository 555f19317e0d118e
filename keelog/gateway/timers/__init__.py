"""Timer messages at the gateway, beside their sends."""
