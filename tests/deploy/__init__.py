"""What deploy/ holds, run: the unit by systemd, the image by its own steps."""
