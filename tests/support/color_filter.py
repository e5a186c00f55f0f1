"""An image filter that judges by a color; small, since the process that reads images imports it."""

from PIL import Image

from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict

_FOUND = {(255, 0, 0): ("red", Action.BLOCK), (0, 0, 255): ("blue", Action.BLUR)}


class ColorFilter:
    """Blocks images whose first pixel is red, and blurs those where it is blue."""

    info = FilterInfo("colors", "1")

    def check(self, image: Image.Image) -> Verdict:
        red, green, blue = image.convert("RGB").tobytes()[:3]
        found = _FOUND.get((red, green, blue))
        return Verdict() if found is None else Verdict((Finding(*found, source="colors"),))


class GreedyFilter:
    """Takes more memory for each image than the process that reads images may have."""

    info = FilterInfo("greedy", "1")

    def check(self, image: Image.Image) -> Verdict:
        return Verdict((Finding(str(len(bytearray(4 << 30))), Action.ALLOW, source="greedy"),))
