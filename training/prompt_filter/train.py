"""Train the embedded prompt classifier from nothing, in about a minute.

python -m training.prompt_filter.train                 # into src/diffuserve/safety
python -m training.prompt_filter.train --out other.safetensors
"""

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from training.prompt_filter.corpus import Corpus, Example, labels
from training.prompt_filter.labelled import labelled_prompts

from diffuserve.safety.classifiers.embedded import DEFAULT_WEIGHTS, features
from diffuserve.safety.policies.folding import fold
from diffuserve.safety.policies.policy_file import load_policy

NUM_BUCKETS = 1 << 15
NUM_SAFE, NUM_UNSAFE = 20_000, 2_600
NUM_STEPS = 150
LEARNING_RATE = 0.1
DECAY = 3e-6
SEED = 20

Weights = NDArray[np.float32]


@dataclass(frozen=True)
class Table:
    """Buckets of the examples, concatenated; those of example i start at `starts[i]`."""

    buckets: NDArray[np.int64]
    starts: NDArray[np.int64]
    scale: Weights
    targets: Weights


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_WEIGHTS)
    arguments = parser.parse_args()
    policy = load_policy()
    categories = labels(policy)
    examples = without_measured(Corpus(policy).draw_many(NUM_SAFE, NUM_UNSAFE, SEED))
    weights, bias = fit(tabulate(examples, categories))
    save(arguments.out, weights, bias, categories)


def without_measured(examples: Sequence[Example]) -> list[Example]:
    """Remove generated examples that occur in the labelled set, compared in folded form."""
    measured = {fold(prompt.prompt).spelled for prompt in labelled_prompts()}
    kept = [example for example in examples if fold(example.prompt).spelled not in measured]
    assert not measured & {fold(example.prompt).spelled for example in kept}
    print(f"{len(kept):,} examples; {len(examples) - len(kept)} left out that are measured")
    return kept


def tabulate(examples: Sequence[Example], categories: Sequence[str]) -> Table:
    rows = [features(fold(example.prompt).spelled, NUM_BUCKETS).buckets for example in examples]
    lengths = np.array([len(row) for row in rows])
    targets = np.array(
        [[example.label == name for name in categories] for example in examples], dtype=np.float32
    )
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    return Table(np.concatenate(rows), starts, (1 / np.sqrt(lengths)).astype(np.float32)[:, None], targets)


def fit(table: Table) -> tuple[Weights, Weights]:
    """Logistic regression on all examples at once, with Adam and a decay of the weights."""
    shape = (NUM_BUCKETS + 1, table.targets.shape[1])  # the last row is the bias
    weights, first, second = (np.zeros(shape, dtype=np.float32) for _ in range(3))
    for step in range(1, NUM_STEPS + 1):
        slope, loss = gradient(table, weights)
        first += 0.1 * (slope - first)
        second += 0.01 * (slope**2 - second)
        rate = LEARNING_RATE * (1 - step / (NUM_STEPS + 1))
        weights -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-6)
        if step % 25 == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
    return weights[:-1], weights[-1]


def gradient(table: Table, weights: Weights) -> tuple[Weights, float]:
    logits = np.add.reduceat(weights[table.buckets], table.starts) * table.scale + weights[-1]
    scores = 1 / (1 + np.exp(-logits))
    loss = -np.log(np.where(table.targets == 1, scores, 1 - scores) + 1e-9).mean()
    error = (scores - table.targets) / len(scores)
    counts = np.diff(np.append(table.starts, len(table.buckets)))
    spread = np.repeat(error * table.scale, counts, axis=0)
    columns = [np.bincount(table.buckets, column, NUM_BUCKETS) for column in spread.T]
    slope = np.vstack((np.stack(columns, axis=1), error.sum(axis=0))).astype(np.float32)
    return slope + DECAY * weights, float(loss)


def save(path: Path, weights: Weights, bias: Weights, categories: Sequence[str]) -> None:
    """Quantize the weights to 8-bit integers with a scale per category; the version is their digest."""
    scale = np.abs(weights).max(axis=0) / 127
    small = np.round(weights / scale).astype(np.int8)
    version = hashlib.sha256(small.tobytes() + bias.tobytes()).hexdigest()[:12]
    tensors = {"weights": small, "scale": scale.astype(np.float32), "bias": bias.astype(np.float32)}
    save_file(tensors, path, {"categories": " ".join(categories), "version": version})
    print(f"{path}: {path.stat().st_size:,} bytes, version {version}")


if __name__ == "__main__":
    main()
