"""Base of the samplers of diffusion models: the noise of training, spacings of timesteps, predictions.

Ho et al. 2020 (arXiv:2006.11239) add noise in T small amounts β₁…β_T; ᾱ_t, the product of 1 - β, says how
much of the image is left at timestep t, and σ_t = √((1 - ᾱ_t) / ᾱ_t) how much noise there is for a unit of
image. Reference implementation: diffusers' schedulers; sums and products keep their order and precision,
so that schedules are equal to the last bit.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field, with_config
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, parse_config

Built = TypeVar("Built", bound="DiffusionNoise")
Doubles: TypeAlias = NDArray[np.float64]
Spacing = Literal["linspace", "leading", "trailing"]
PredictionType = Literal["epsilon", "sample", "v_prediction", "flow_prediction"]
FinalSigma = Literal["zero", "sigma_min"]
Sigma = Annotated[float, Field(gt=0, lt=1e6)]

_KARRAS_RHO = 7.0  # the value of the paper


@with_config(SCHEMA)
@dataclass(frozen=True)
class DiffusionNoise:
    """The noise that a diffusion model was trained with; field names are those of `scheduler_config.json`.

    Timesteps of a request are spaced after table 2 of Lin et al. 2023 (arXiv:2305.08891), whose section
    3.1 is `rescale_betas_zero_snr`.
    """

    num_train_timesteps: Annotated[int, Field(ge=2, le=100_000)] = 1000
    beta_start: Annotated[float, Field(gt=0, lt=1)] = 0.0001
    beta_end: Annotated[float, Field(gt=0, lt=1)] = 0.02
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "linear"
    trained_betas: tuple[Annotated[float, Field(gt=0, lt=1)], ...] | None = None
    rescale_betas_zero_snr: bool = False
    prediction_type: PredictionType = "epsilon"
    timestep_spacing: Spacing = "linspace"
    steps_offset: Annotated[int, Field(ge=0, le=1000)] = 0

    unsupported: ClassVar[tuple[str, ...]] = ()
    """Options of the reference that are not implemented; a config that sets one is refused."""
    request_options: ClassVar[tuple[str, ...]] = ()
    """Options that requests give, and no config."""
    prediction_types: ClassVar[tuple[PredictionType, ...]] = ("epsilon", "sample", "v_prediction")
    """Predictions of the model that the sampler takes."""

    @classmethod
    def from_config(cls: type[Built], config: Mapping[str, Any]) -> Built:
        """Build a sampler from `scheduler_config.json`, its own or another sampler's.

        As in diffusers, options that this sampler does not have are ignored. Raise `InvalidModel` for
        unsupported options and for values out of bounds.
        """
        names = {field.name for field in fields(cls)} - {*cls.request_options}
        options = cls.adapt(config)
        known = {name: value for name, value in options.items() if name in names and value is not None}
        sampler = parse_config(cls, known, "scheduler_config.json")
        if sampler.prediction_type not in cls.prediction_types:
            raise InvalidModel(
                f"scheduler_config.json: prediction_type={sampler.prediction_type!r} is not supported by "
                f"{cls.__name__}; it takes {', '.join(cls.prediction_types)}"
            )
        return sampler

    def with_options(self: Built, options: Iterable[tuple[str, Any]]) -> Built:
        """Return the sampler with the options of a request, as far as it has them.

        A request's `timestep_spacing` goes before the config's.
        """
        own = {*self.request_options, "timestep_spacing"}
        return replace(self, **{name: value for name, value in options if name in own})

    @classmethod
    def adapt(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a config with this sampler's own option names. Raise `InvalidModel` for unsupported ones."""
        for option in cls.unsupported:
            if config.get(option):
                raise InvalidModel(f"scheduler_config.json: {option}={config[option]!r} is not supported")
        return config

    @cached_property
    def alphas_cumprod(self) -> Float[Tensor, "train_timesteps"]:
        """Return ᾱ by timestep, in float32."""
        return torch.cumprod(1.0 - self._betas(), dim=0)

    @cached_property
    def train_sigmas(self) -> NDArray[np.float32]:
        """Return σ by timestep, rising."""
        alphas_cumprod = self.alphas_cumprod.clone()
        if self.rescale_betas_zero_snr:
            alphas_cumprod[-1] = 2**-24  # fp16's smallest number, so that the first σ is finite
        sigmas: NDArray[np.float32] = (((1 - alphas_cumprod) / alphas_cumprod) ** 0.5).numpy()
        return sigmas

    def spaced_timesteps(self, num_inference_steps: int, drop_last: bool = False) -> Doubles:
        """Return falling timesteps, not yet rounded for "linspace".

        With `drop_last` one extra timestep is spaced and the last one dropped, for solvers that end between
        it and zero. "Trailing" yields one timestep too many where T/n is rounded up (n = 61 of
        1,000), which the reference takes as timestep -1; here the list is truncated.
        """
        total, count = self.num_train_timesteps, num_inference_steps + drop_last
        if self.timestep_spacing == "linspace":
            return np.linspace(0, total - 1, count)[::-1][:num_inference_steps].copy()
        if self.timestep_spacing == "leading":
            spaced = (np.arange(0, count) * (total // count))[::-1][:num_inference_steps]
            return spaced.astype(np.float64) + self.steps_offset
        ratio = total / num_inference_steps
        return np.asarray(np.arange(total, 0, -ratio).round()[:num_inference_steps] - 1)

    def sigmas_at(self, timesteps: NDArray[Any]) -> Doubles:
        """Return σ at timesteps, interpolated linearly between training's."""
        return np.asarray(np.interp(timesteps, np.arange(len(self.train_sigmas)), self.train_sigmas))

    def timesteps_of(self, sigmas: Doubles) -> Doubles:
        """Return the timesteps at which training had these noise levels, interpolated in log σ."""
        log_sigmas = np.log(self.train_sigmas)
        return np.array([_timestep_of(sigma, log_sigmas) for sigma in sigmas])

    def x0(self, latents: Tensor, prediction: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """Return the clean latents of x = αx₀ + σε that a prediction implies."""
        if self.prediction_type == "epsilon":
            return (latents - sigma * prediction) / alpha
        if self.prediction_type == "v_prediction":
            return alpha * latents - sigma * prediction
        return prediction

    def _betas(self) -> Float[Tensor, "train_timesteps"]:
        if self.trained_betas is not None:
            return torch.tensor(self.trained_betas, dtype=torch.float32)
        start, end, count = self.beta_start, self.beta_end, self.num_train_timesteps
        if self.beta_schedule == "linear":
            betas = torch.linspace(start, end, count, dtype=torch.float32)
        elif self.beta_schedule == "scaled_linear":
            betas = torch.linspace(start**0.5, end**0.5, count, dtype=torch.float32) ** 2
        else:
            betas = _cosine_betas(count)
        return _zero_terminal_snr(betas) if self.rescale_betas_zero_snr else betas


def karras_sigmas(sigma_max: float, sigma_min: float, count: int) -> Doubles:
    """Return falling noise levels by equation 5 of Karras et al. 2022 (arXiv:2206.00364)."""
    ramp = np.linspace(0, 1, count)
    low, high = sigma_min ** (1 / _KARRAS_RHO), sigma_max ** (1 / _KARRAS_RHO)
    return np.asarray((high + ramp * (low - high)) ** _KARRAS_RHO)


def exponential_sigmas(sigma_max: float, sigma_min: float, count: int) -> Doubles:
    """Return falling noise levels that are evenly spaced in log σ."""
    return np.exp(np.linspace(math.log(sigma_max), math.log(sigma_min), count))


def floats(values: NDArray[Any] | Tensor) -> tuple[float, ...]:
    """Return values as Python floats, each exact in float32."""
    return tuple(map(float, values.tolist()))


def _timestep_of(sigma: np.float64, log_sigmas: NDArray[np.float32]) -> np.float64:
    log_sigma = np.log(np.maximum(sigma, 1e-10))
    low_index = int(np.cumsum(log_sigma - log_sigmas >= 0).argmax().clip(max=len(log_sigmas) - 2))
    low, high = log_sigmas[low_index], log_sigmas[low_index + 1]
    weight = np.clip((low - log_sigma) / (low - high), 0, 1)
    return np.float64((1 - weight) * low_index + weight * (low_index + 1))


def _cosine_betas(count: int) -> Tensor:
    """Return β of Nichol and Dhariwal 2021 (arXiv:2102.09672, equation 17), at most 0.999."""

    def alpha_bar(time: float) -> float:
        return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

    ratios = [alpha_bar((i + 1) / count) / alpha_bar(i / count) for i in range(count)]
    return torch.tensor([min(1 - ratio, 0.999) for ratio in ratios], dtype=torch.float32)


def _zero_terminal_snr(betas: Tensor) -> Tensor:
    """Return β rescaled so that no image is left at the last timestep (arXiv:2305.08891, algorithm 1)."""
    root = torch.cumprod(1.0 - betas, dim=0).sqrt()
    first, last = root[0].clone(), root[-1].clone()
    root -= last
    root *= first / (first - last)
    alphas_cumprod = root**2
    return 1 - torch.cat([alphas_cumprod[:1], alphas_cumprod[1:] / alphas_cumprod[:-1]])
