"""Imports an app of Modal, runs what it runs in a container, and prints as JSON what came of it.

Its environment has Modal, but no account: `.local()` runs here what `.remote()` runs there.
"""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def loaded(file: Path) -> Any:
    """Import the app's file, as `modal deploy` does."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    module = loaded(Path(sys.argv[1]))
    told: dict[str, Any] = {"functions": sorted(module.app.registered_functions)}
    images = module.Images()
    requests = [
        {"prompt": "a star", "seed": n, "width": 64 + 16 * n, "height": 64, "steps": 2} for n in range(6)
    ]
    # First a plain method: `.local()` of one that is async does not run the hooks of its class.
    batch = images.generate_batch.local([*requests, {"prompt": "a star", "width": 7}])
    told["batch"] = [drawn.get("seeds") for drawn in batch]
    told["begins"] = [drawn["images"][0][:4].decode("latin-1") for drawn in batch[:-1]]
    told["in_place"] = batch[-1]["error"]
    told["refused"] = asyncio.run(at_once(images))
    told["requests_per_step"] = images.images._host.engine.stats.mean_requests_per_step
    told["web"] = type(module.web.local()).__name__
    images.images.close()
    print(json.dumps(told))


async def at_once(images: Any) -> str:
    """Draw four images at once, then what is refused; return why."""
    await asyncio.gather(*(images.generate.local(prompt="a circle", seed=n, steps=4) for n in range(4)))
    try:
        await images.generate.local(prompt="a star", with_="glitter")
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


if __name__ == "__main__":
    main()
