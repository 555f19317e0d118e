"""What HTML reports share: the frame of a page and the look of a picture."""
