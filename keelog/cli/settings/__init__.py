"""Commands and files of settings."""
