"""Files of images and clips, written and read."""
