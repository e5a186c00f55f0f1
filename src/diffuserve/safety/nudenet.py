"""NudeNet, a detector of parts of the body. Optional: what its package says of its licence is the
AGPL in one place and MIT in another."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image

from diffuserve.domain.safety import Action
from diffuserve.models.fingerprint import hash_file
from diffuserve.safety.image import ImageRule
from diffuserve.safety.onnx_session import quiet_session

_BLOCKED = (
    "FEMALE_GENITALIA_EXPOSED",
    "MALE_GENITALIA_EXPOSED",
    "ANUS_EXPOSED",
    "FEMALE_BREAST_EXPOSED",
    "BUTTOCKS_EXPOSED",
)
DEFAULT_RULES: Mapping[str, ImageRule] = {label: ImageRule(0.5, Action.BLOCK) for label in _BLOCKED}


class NudeNet:
    """The weights come with the package `nudenet`. A label's score is that of its surest detection."""

    name = "nudenet"

    def __init__(self) -> None:
        """Raises `ImportError` without the package."""
        from nudenet import nudenet

        nudenet.cv2.setNumThreads(1)
        weights = Path(nudenet.__file__).with_name("320n.onnx")
        self._detector = nudenet.NudeDetector()
        self._detector.onnx_session = quiet_session(weights)  # its own has a thread for every core
        self.labels = tuple(vars(nudenet)["__labels"])
        self.version = f"{version('nudenet')}+{hash_file(weights)[:12]}"

    def scores(self, image: Image.Image) -> Mapping[str, float]:
        blue_first = np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])
        scores = dict.fromkeys(self.labels, 0.0)
        for found in self._detector.detect(blue_first):
            scores[found["class"]] = max(scores[found["class"]], found["score"])
        return scores
