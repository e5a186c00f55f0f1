"""The beginning that all pipelines of this package share: how they were loaded, and what follows from it."""

from dataclasses import replace

import torch

from diffuserve.domain.models.description import Description
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.autoencoder.image_vae import max_decode_pixels
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.machine.devices import check_deterministic, default_dtype, dtype_name
from diffuserve.models.pipelines.base import PipelineDefaults
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import checkpoint_dtype


class LoadedPipeline(PipelineDefaults):
    """A loaded checkpoint. Its dtype is chosen, and so is what its weights are kept in."""

    def __init__(self, spec: ModelSpec, plan: LoadPlan) -> None:
        self.spec, self.device, self.dtype = spec, plan.device, plan.chosen_dtype
        self.deterministic, self.ranks, self.parts = plan.deterministic, plan.ranks, plan.parts
        self.quantization = plan.kept_in

    @property
    def max_decode_pixels(self) -> int:
        return max_decode_pixels(self.device, self.deterministic)

    def described(self, attention: str, vae_dtype: torch.dtype | None = None) -> Description:
        """Return what `Pipeline.describe` does; an autoencoder may have a dtype of its own."""
        is_own = self.quantization is Quantization.NONE
        return {
            "model": self.spec.name,
            "device": str(self.device),
            "dtype": dtype_name(self.dtype),
            **({} if vae_dtype is None else {"vae dtype": dtype_name(vae_dtype)}),
            **({} if is_own else {"quantization": self.quantization.value}),
            **self.residency.describe(),
            "attention": attention,
            "deterministic": self.deterministic,
            **({} if self.ranks is None else {"parallel": str(self.ranks.plan)}),
        }


def with_dtype(
    plan: LoadPlan, folder: ModelFolder, component: str, half: torch.dtype = torch.float32
) -> LoadPlan:
    """Return a plan whose dtype is chosen: by default the checkpoint's, as far as the device is good at it.

    On a GPU it is `half` where the checkpoint's is float32, and on a CPU without bf16 instructions float32.
    Raise `DeviceUnavailable` if the device cannot compute deterministically as it is asked to.
    """
    if plan.deterministic:
        check_deterministic(plan.device, plan.ranks is not None)
    if plan.dtype is not None:
        return plan
    stored = checkpoint_dtype(folder.weights(component))
    return replace(plan, dtype=default_dtype(stored, plan.device, half=half))
