"""The parts of a model that an engine loads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """The phases that an engine does, and so the parts of a model that it loads.

    Encoding needs the text encoders and, if requests may have input images, the autoencoder's encoder.
    Denoising needs the transformers, and decoding the autoencoder's decoder.
    """

    encoding: bool = True
    denoising: bool = True
    decoding: bool = True


ALL_PARTS = Parts()
