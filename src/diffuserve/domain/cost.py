"""Seconds of a request, as pure arithmetic on its size.

One denoising step of a batch costs

    step_seconds + token_seconds·Σ tokens + pair_seconds·Σ tokens² + sequence_seconds·(sequences)

where each image (and each guidance pass) is one sequence of its own: attention never crosses
sequences, so its cost is the sum of squares. Text encoding and decoding are affine in their size.
The coefficients are fitted; here they are only used.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """The size of a request, as far as its cost depends on it.

    `num_sequences` counts images times guidance passes; `sequence_tokens` is the length of one,
    text and image together; `num_pixels` counts all images and frames.
    """

    num_sequences: int
    sequence_tokens: int
    text_tokens: int
    num_pixels: int
    num_inference_steps: int

    @property
    def step_tokens(self) -> int:
        return self.num_sequences * self.sequence_tokens


StepFeatures = tuple[float, float, float, float]
LinearFeatures = tuple[float, float]


def step_features(loads: Iterable[Workload]) -> StepFeatures:
    """What one shared step costs by: a constant, tokens, squared tokens, sequences."""
    tokens = pairs = sequences = 0
    for load in loads:
        tokens += load.step_tokens
        pairs += load.num_sequences * load.sequence_tokens**2
        sequences += load.num_sequences
    return (1.0, float(tokens), float(pairs), float(sequences))


def encode_features(loads: Sequence[Workload]) -> LinearFeatures:
    return (1.0, float(sum(load.text_tokens for load in loads)))


def decode_features(loads: Sequence[Workload]) -> LinearFeatures:
    return (1.0, float(sum(load.num_pixels for load in loads)))


@dataclass(frozen=True)
class CostFit:
    """Fitted coefficients, all in seconds and never negative."""

    encode: LinearFeatures
    step: StepFeatures
    decode: LinearFeatures

    def encode_seconds(self, loads: Sequence[Workload]) -> float:
        return dot(self.encode, encode_features(loads))

    def step_seconds(self, loads: Iterable[Workload]) -> float:
        return dot(self.step, step_features(loads))

    def decode_seconds(self, loads: Sequence[Workload]) -> float:
        return dot(self.decode, decode_features(loads))

    def estimate(self, load: Workload) -> "CostEstimate":
        """Device-seconds of a request that has the device to itself."""
        return CostEstimate(
            encode_seconds=self.encode_seconds([load]),
            denoise_seconds=load.num_inference_steps * self.step_seconds([load]),
            decode_seconds=self.decode_seconds([load]),
        )

    def step_shares(self, loads: Sequence[Workload]) -> list[float]:
        """Split a shared step among its requests by what each adds; the shares sum to 1."""
        weights = [self.step_seconds([load]) for load in loads]
        total = sum(weights)
        return [weight / total for weight in weights] if total else [1 / len(loads)] * len(loads)

    def knee_tokens(self, overhead: float = 0.03) -> int:
        """Tokens in a step from which its constant part is below `overhead` of the rest.

        Past this point a larger batch adds latency and next to no throughput.
        """
        constant, per_token = self.step[0], self.step[1]
        return int(constant / (overhead * per_token)) if per_token > 0 else 0

    def to_dict(self) -> dict[str, list[float]]:
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Any) -> "CostFit":
        """Raises `ValueError` for anything but `to_dict`'s own shape."""
        try:
            encode_constant, encode_token = map(float, values["encode"])
            constant, token, pair, sequence = map(float, values["step"])
            decode_constant, decode_pixel = map(float, values["decode"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a cost fit: {values!r}") from error
        fit = cls(
            (encode_constant, encode_token),
            (constant, token, pair, sequence),
            (decode_constant, decode_pixel),
        )
        if not all(
            math.isfinite(seconds) and seconds >= 0 for seconds in (*fit.encode, *fit.step, *fit.decode)
        ):
            raise ValueError(f"seconds of a cost fit must be finite and not negative: {values!r}")
        return fit


@dataclass(frozen=True)
class CostEstimate:
    """Predicted device-seconds of one request, by phase."""

    encode_seconds: float
    denoise_seconds: float
    decode_seconds: float

    @property
    def seconds(self) -> float:
        return self.encode_seconds + self.denoise_seconds + self.decode_seconds


def dot(coefficients: Sequence[float], features: Sequence[float]) -> float:
    return sum(c * f for c, f in zip(coefficients, features, strict=True))
