"""Workloads of the benchmarks: request lists and arrival times, generated from a seed."""

import random
from dataclasses import dataclass, replace

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.bundled import bundled_models
from diffuserve.models.weights.fingerprint import hash_weights

CHECKPOINT = bundled_models()["tiny-flux"]

_COLORS = (
    "red",
    "green",
    "blue",
    "yellow",
    "orange",
    "purple",
    "pink",
    "cyan",
    "brown",
    "black",
    "white",
    "gray",
)
_SHAPES = ("circle", "square", "triangle", "star", "heart", "ring", "cross", "diamond")
_SIZES = ("small", "medium", "large")


@dataclass(frozen=True)
class Arrivals:
    """Requests with the second at which each arrives."""

    requests: tuple[GenerationParams, ...]
    seconds: tuple[float, ...]


def mixed(count: int, seed: int) -> list[GenerationParams]:
    """Return requests of 64-192 px and 2-8 steps; the seed changes prompts and noise, but no shapes."""
    shapes, words = random.Random("shapes"), random.Random(seed)
    return [
        GenerationParams(
            prompt=prompt(words),
            width=16 * shapes.randint(4, 12),
            height=16 * shapes.randint(4, 12),
            num_inference_steps=shapes.randint(2, 8),
            seed=words.randrange(2**31),
            max_sequence_length=32,
        )
        for _ in range(count)
    ]


def equal(count: int, seed: int, side: int) -> list[GenerationParams]:
    """Return requests for square images of a single size, in 4 steps."""
    words = random.Random(seed)
    return [
        GenerationParams(
            prompt=prompt(words),
            width=side,
            height=side,
            num_inference_steps=4,
            seed=words.randrange(2**31),
            max_sequence_length=32,
        )
        for _ in range(count)
    ]


def tiered(count: int, seed: int) -> list[GenerationParams]:
    """Return requests of 128 px in 4, 8 or 20 steps; the seed changes prompts and noise, but no steps."""
    shapes = random.Random("tiers")
    return [
        replace(request, num_inference_steps=shapes.choice((4, 8, 20)))
        for request in equal(count, seed, side=128)
    ]


def poisson(count: int, seed: int, rate: float) -> Arrivals:
    """Return the mixed requests as a Poisson process with `rate` arrivals per second."""
    return Arrivals(tuple(mixed(count, seed)), arrival_seconds(count, seed, rate))


def arrival_seconds(count: int, seed: int, rate: float) -> tuple[float, ...]:
    """Return the times of a Poisson process with `rate` arrivals per second."""
    clock, times = random.Random(f"clock {seed}"), []
    now = 0.0
    for _ in range(count):
        now += clock.expovariate(rate)
        times.append(now)
    return tuple(times)


def checkpoint_name() -> str:
    """Return the model's name and the start of its weights' hash, by which results tell models apart."""
    return f"{CHECKPOINT.name}-{hash_weights(CHECKPOINT)[:12]}"


def prompt(words: random.Random) -> str:
    """Return a random prompt out of about 10,000, so that neither side has it cached."""
    background = words.choice(_COLORS)
    color = words.choice([color for color in _COLORS if color != background])
    return f"a {words.choice(_SIZES)} {color} {words.choice(_SHAPES)} on a {background} background"
