"""The parts of a model that an engine loads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """The phases that an engine does, and so the parts of a model that it loads.

    Denoising needs the text encoders, the transformers, and of the autoencoder the encoder where requests may
    bring images; decoding needs the autoencoder's decoder alone.
    """

    denoising: bool = True
    decoding: bool = True


ALL_PARTS = Parts()
