"""The plan by which a model is loaded, one value from the call down to the reading of each tensor.

Importing this file loads no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.folders.folder import ALONE, Companions

if TYPE_CHECKING:
    import torch

    from diffuserve.models.weights.prepared import PreparedCopy
    from diffuserve.parallel.ranks import Ranks


@dataclass(frozen=True)
class LoadPlan:
    """Way in which a model, or a module of it, is loaded.

    `dtype=None` means the family's choice for the checkpoint and the device, and `quantization=None` the
    folder's own. Each of `ranks` loads the same model, and every step is shared. Weights of an `offload`
    never are on the device all at once; those that `stay_on_host` wait there, ready for it. Weights come from
    the `copy` if it has them, and `on_read` is called with the bytes of each tensor that is read.
    `companions` are loaded beside the model, as they are, and stay on the device.
    """

    device: "torch.device"
    dtype: "torch.dtype | None" = None
    deterministic: bool = False
    ranks: "Ranks | None" = None
    parts: Parts = ALL_PARTS
    quantization: Quantization | None = None
    offload: Offload = Offload.NONE
    stay_on_host: bool = False
    copy: "PreparedCopy | None" = None
    on_read: Callable[[int], None] | None = None
    companions: Companions = ALONE

    @property
    def chosen_dtype(self) -> "torch.dtype":
        """The dtype, once the family has chosen it."""
        assert self.dtype is not None
        return self.dtype

    @property
    def kept_in(self) -> Quantization:
        """Return what the weights are kept in, once that is chosen."""
        return self.quantization or Quantization.NONE

    @property
    def beside(self) -> "LoadPlan":
        """Return the plan of what is loaded beside the model: resident, and in numbers as they are."""
        return replace(self, quantization=Quantization.NONE, stay_on_host=False, copy=None)

    @property
    def is_wanted(self) -> bool:
        """True unless the module is of a part that is not loaded: it then has shapes, and no weights."""
        return self.device.type != "meta"

    def when(self, is_wanted: bool) -> "LoadPlan":
        """Return the plan of a module: this one, or one by which nothing is read."""
        import torch

        return self if is_wanted else replace(self, device=torch.device("meta"))
