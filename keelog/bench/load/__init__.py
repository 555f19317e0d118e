"""The processes of a load, and what each of them does."""
