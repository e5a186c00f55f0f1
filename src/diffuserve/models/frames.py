"""Images as they leave a model. Importing this file loads no torch."""

from PIL.Image import Image

Frames = list[Image]  # one image is a list of one frame
