"""An image classifier in transformers' format, loaded from a folder."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from PIL import Image

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.models.folders.folder import first_line
from diffuserve.models.folders.pretrained import load_module, load_processor
from diffuserve.models.weights.fingerprint import hash_weights


class TransformersClassifier:
    """Runs on the CPU, on the caller's thread. Its labels are the checkpoint's own."""

    def __init__(self, folder: Path) -> None:
        """Load the folder. Raise `InvalidParams` if it holds no classifier, or only pickled weights."""
        check_classifier_folder(folder)
        self._processor, self._model = _load(folder.resolve())
        self._is_multi_label = self._model.config.problem_type == "multi_label_classification"
        self.labels: tuple[str, ...] = tuple(self._model.config.id2label.values())
        self.name = f"transformers:{folder.name}"
        self.version = f"{version('transformers')}+{hash_weights(folder, '*.safetensors')[:12]}"

    def scores(self, image: Image.Image) -> Mapping[str, float]:
        """Return a probability for each label; they sum to 1 unless the checkpoint is multi-label."""
        import torch

        from diffuserve.models.machine.host import one_thread

        with one_thread(), torch.inference_mode():
            pixels = self._processor(images=image.convert("RGB"), return_tensors="pt")
            logits = self._model(**pixels).logits[0].float()
            probabilities = logits.sigmoid() if self._is_multi_label else logits.softmax(dim=0)
            return dict(zip(self.labels, probabilities.tolist(), strict=True))


def check_classifier_folder(folder: Path) -> None:
    """Raise `InvalidParams` for a folder without safetensors."""
    if not any(folder.glob("*.safetensors")):
        remedy = "must be a folder of an image classifier with *.safetensors; pickles are never opened"
        raise InvalidParams("image_filter", f"transformers:{folder}", remedy)


def _load(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    try:
        processor = load_processor(AutoImageProcessor, folder)
        model = load_module(AutoModelForImageClassification, folder)
    except InvalidModel as error:
        remedy = f"is not an image classifier that transformers can load ({first_line(error)})"
        raise InvalidParams("image_filter", f"transformers:{folder}", remedy) from error
    return processor, model
