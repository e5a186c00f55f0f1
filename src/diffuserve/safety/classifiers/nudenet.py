"""NudeNet, a detector of body parts. It is optional, since its package states two licenses, AGPL and MIT."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image

from diffuserve.domain.safety import Action
from diffuserve.models.weights.fingerprint import hash_file
from diffuserve.safety.classifiers.onnx_session import single_threaded_session
from diffuserve.safety.image import ImageRule

_BLOCKED = (
    "FEMALE_GENITALIA_EXPOSED",
    "MALE_GENITALIA_EXPOSED",
    "ANUS_EXPOSED",
    "FEMALE_BREAST_EXPOSED",
    "BUTTOCKS_EXPOSED",
)
DEFAULT_RULES: Mapping[str, ImageRule] = {label: ImageRule(0.5, Action.BLOCK) for label in _BLOCKED}


class NudeNet:
    """Scores by the model in the package `nudenet`. A label's score is that of its surest detection."""

    name = "nudenet"

    def __init__(self) -> None:
        """Load the model. Raise `ImportError` without the package."""
        from nudenet import nudenet

        nudenet.cv2.setNumThreads(1)
        weights = Path(nudenet.__file__).with_name("320n.onnx")
        self._detector = nudenet.NudeDetector()
        self._detector.onnx_session = single_threaded_session(
            weights
        )  # its own starts a thread for each core
        self.labels = tuple(vars(nudenet)["__labels"])
        self.version = f"{version('nudenet')}+{hash_file(weights)[:12]}"

    def scores(self, image: Image.Image) -> Mapping[str, float]:
        """Return a score in 0…1 for each label."""
        blue_first = np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])
        scores = dict.fromkeys(self.labels, 0.0)
        for detection in self._detector.detect(blue_first):
            label = detection["class"]
            scores[label] = max(scores[label], detection["score"])
        return scores
