"""Seconds of a request, as pure arithmetic on its size.

One denoising step of a batch costs

    step_seconds + token_seconds·Σ tokens + pair_seconds·Σ tokens² + sequence_seconds·(sequences)

where each image (and each guidance pass) is one sequence of its own: attention never crosses
sequences, so its cost is the sum of squares. Text encoding and decoding are affine in their size.
The coefficients are fitted elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diffuserve.domain.bounds import Seconds


@dataclass(frozen=True)
class Workload:
    """The size of a request, as far as its cost depends on it.

    `num_sequences` counts images times guidance passes; `sequence_tokens` is the length of each, with
    the prompt's tokens where the model attends to both jointly. `text_tokens` counts the tokens that
    the text encoders read, `num_pixels` those that the VAE decodes, of all images and latent frames, in
    `num_chunks` pieces one after another, and `input_pixels` those that it encodes, counted in the same way.
    `later_pixels` are those among `num_pixels` that stand for the latent frames of clips after the first.
    The images of a request that `is_whole` take each step, and are decoded, together; those of others may do
    so in turns. `num_adapters` are those that the request uses.
    """

    num_sequences: int
    sequence_tokens: int
    text_tokens: int
    num_pixels: int
    num_inference_steps: int
    input_pixels: int = 0
    num_chunks: int = 1
    later_pixels: int = 0
    is_whole: bool = False
    num_adapters: int = 0

    @property
    def step_tokens(self) -> int:
        """Packed tokens of one denoising step."""
        return self.num_sequences * self.sequence_tokens


ENCODED_PIXEL = 0.5
"""Cost of encoding a pixel, in decoded pixels: an image autoencoder's encoder has half the operations.

That of Wan 2.1's video autoencoder has 0.59 of them.
"""

FIRST_LATENT_FRAME = 1 / 3
"""Cost of decoding the first latent frame of a clip, in others: it stands for one frame, they for several.

Counted in Wan's decoder, which works on four frames at a time in its last layers alone. Measurements of both
correct it for other decoders.
"""

ADAPTER_WORK = 0.05
"""What an adapter adds to a step, in steps without: at most that for rank 16 in all layers."""

StepFeatures = tuple[float, float, float, float]
LinearFeatures = tuple[float, float]
DecodeFeatures = tuple[float, float, float]


def step_features(workloads: Iterable[Workload]) -> StepFeatures:
    """Return the factors of one shared step's cost: 1, tokens, squared tokens, sequences.

    Those of a request with adapters count for as much more as adapters add.
    """
    tokens = pairs = sequences = 0.0
    for workload in workloads:
        work = 1 + ADAPTER_WORK * workload.num_adapters
        tokens += work * workload.step_tokens
        pairs += work * workload.num_sequences * workload.sequence_tokens**2
        sequences += work * workload.num_sequences
    return (1.0, tokens, pairs, sequences)


def encode_features(workloads: Sequence[Workload]) -> LinearFeatures:
    """Return the factors of an encode batch's cost: 1, prompt tokens."""
    return (1.0, float(sum(workload.text_tokens for workload in workloads)))


def decode_features(workloads: Sequence[Workload]) -> DecodeFeatures:
    """Return the factors of a decode group's cost: calls of the decoder one after another, and pixels.

    Those of images and of first latent frames come before later ones.
    """
    num_calls = max(workload.num_chunks for workload in workloads)
    later = sum(workload.later_pixels for workload in workloads)
    first = sum(workload.num_pixels for workload in workloads) - later
    return (float(num_calls), float(first), float(later))


@dataclass(frozen=True)
class CostFit:
    """Fitted coefficients, all in seconds and never negative.

    `load_seconds` are those from the start of an engine until the model is in memory; 0 until measured.
    `later_pixel` is what `decode` has for a pixel, of later latent frames; `None` for the same.
    """

    encode: tuple[Seconds, Seconds]
    step: tuple[Seconds, Seconds, Seconds, Seconds]
    decode: tuple[Seconds, Seconds]
    load_seconds: Seconds = 0.0
    later_pixel: Seconds | None = None

    @property
    def decode_parts(self) -> tuple[float, float, float]:
        """The coefficients of `decode_features`."""
        constant, pixel = self.decode
        return (constant, pixel, pixel if self.later_pixel is None else self.later_pixel)

    def encode_seconds(self, workloads: Sequence[Workload]) -> float:
        """Predict the seconds in which text encoders read the prompts and the VAE the input images."""
        input_pixels = sum(workload.input_pixels for workload in workloads)
        return dot(self.encode, encode_features(workloads)) + ENCODED_PIXEL * self.decode[1] * input_pixels

    def step_seconds(self, workloads: Iterable[Workload]) -> float:
        return dot(self.step, step_features(workloads))

    def added_seconds(self, workloads: Iterable[Workload]) -> float:
        """Predict what requests add to the seconds of a step."""
        return self.step_seconds(workloads) - self.step[0]

    def decode_seconds(self, workloads: Sequence[Workload]) -> float:
        return dot(self.decode_parts, decode_features(workloads))

    def estimate(self, workload: Workload) -> "CostEstimate":
        """Predict the device-seconds of a request that has the device to itself."""
        return CostEstimate(
            encode_seconds=self.encode_seconds([workload]),
            denoise_seconds=workload.num_inference_steps * self.step_seconds([workload]),
            decode_seconds=self.decode_seconds([workload]),
        )

    def step_shares(self, workloads: Sequence[Workload]) -> list[float]:
        """Split a shared step among its requests by what each adds; the shares sum to 1."""
        weights = [self.step_seconds([workload]) for workload in workloads]
        total = sum(weights)
        return [weight / total for weight in weights] if total else [1 / len(workloads)] * len(workloads)

    def scaled(self, factor: float) -> "CostFit":
        """Return the fit of a device that takes `factor` times as long; load times stay the same."""
        encode_constant, encode_token = (factor * seconds for seconds in self.encode)
        constant, token, pair, sequence = (factor * seconds for seconds in self.step)
        decode_constant, decode_pixel = (factor * seconds for seconds in self.decode)
        return CostFit(
            (encode_constant, encode_token),
            (constant, token, pair, sequence),
            (decode_constant, decode_pixel),
            self.load_seconds,
            None if self.later_pixel is None else factor * self.later_pixel,
        )

    def knee_tokens(self, overhead: float = 0.03) -> int:
        """Return the tokens in a step from which its constant part is below `overhead` of the token part.

        Past this point a larger batch adds latency and next to no throughput. 0 if tokens cost nothing.
        """
        constant, per_token = self.step[0], self.step[1]
        return int(constant / (overhead * per_token)) if per_token > 0 else 0


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
    """Return the inner product of two sequences of equal length."""
    return sum(c * f for c, f in zip(coefficients, features, strict=True))
