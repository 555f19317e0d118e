"""Figures of a store as rows, text, pictures and a page."""
