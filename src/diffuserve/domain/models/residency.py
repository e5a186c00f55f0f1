"""The locations of a loaded model's weights: on the device, or on the host until they are used."""

from dataclasses import dataclass, replace

from diffuserve.domain.bounds import WholeAmount
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.description import Description
from diffuserve.domain.models.offload import Offload

_COPY_SECONDS = {"cuda": 1 / 25e9, "cpu": 1 / 5e9}  # per byte; like the whole prior it is refitted


@dataclass(frozen=True)
class Residency:
    """The bytes of a model's weights on the device and on the host, and the bytes that each phase copies.

    All are 0 if all weights are on the device.
    """

    mode: Offload = Offload.NONE
    device_bytes: WholeAmount = 0
    host_bytes: WholeAmount = 0
    encode_bytes: WholeAmount = 0
    step_bytes: WholeAmount = 0
    decode_bytes: WholeAmount = 0

    def describe(self) -> Description:
        """Return the entries of a pipeline's `describe`; none without offload."""
        if self.mode is Offload.NONE:
            return {}
        return {
            "offload": self.mode.value,
            "weights_on_device_bytes": self.device_bytes,
            "weights_on_host_bytes": self.host_bytes,
        }

    def slowed(self, fit: CostFit, device_type: str) -> CostFit:
        """Return an estimated fit plus the copies of each phase, which do not depend on a request's size."""
        rate = _COPY_SECONDS[device_type]
        return replace(
            fit,
            encode=(fit.encode[0] + self.encode_bytes * rate, *fit.encode[1:]),
            step=(fit.step[0] + self.step_bytes * rate, *fit.step[1:]),
            decode=(fit.decode[0] + self.decode_bytes * rate, *fit.decode[1:]),
        )


RESIDENT = Residency()
"""All weights are on the device."""
