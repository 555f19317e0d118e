"""Makes the generated parts of pages."""
