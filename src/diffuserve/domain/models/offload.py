"""The weights of a model that stay on the host until they are used."""

from enum import StrEnum

from diffuserve.domain.errors import InvalidParams


class Offload(StrEnum):
    """Weights that stay on the host until they are used; with `NONE` all are on the device.

    `TEXT`: the layers of the encoders are streamed through the device. `LAYERS`: also those of the
    transformer. `MODEL`: encoders, transformer and autoencoder are swapped in one at a time, each as a whole.
    """

    NONE = "none"
    TEXT = "text"
    MODEL = "model"
    LAYERS = "layers"

    @property
    def denoises_one_by_one(self) -> bool:
        """Return whether one forward pass of the transformer must end before the next begins."""
        return self in (Offload.MODEL, Offload.LAYERS)


def parse_offload(name: str | None) -> Offload:
    """Return the offload of this name; `None` means no offload. Raise `InvalidParams` for an unknown name."""
    try:
        return Offload.NONE if name is None else Offload(name)
    except ValueError:
        raise InvalidParams("offload", name, f"must be one of {', '.join(Offload)}") from None
