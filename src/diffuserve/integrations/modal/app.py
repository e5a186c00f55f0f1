"""diffuserve on Modal: `modal deploy` this file. `diffuserve integrations modal` wrote it; it is yours."""

from typing import Any

import modal

SETTINGS: dict[str, Any] = {}
GPU = "H100"
PACKAGE = "diffuserve[engine,models]"
WEIGHTS = "/weights"

weights = modal.Volume.from_name("diffuserve-weights", create_if_missing=True)
image = (
    modal.Image.debian_slim(python_version="3.12")
    .pip_install(PACKAGE)
    .env({"HF_HOME": f"{WEIGHTS}/hub", "DIFFUSERVE_CACHE_DIR": f"{WEIGHTS}/diffuserve"})
)
app = modal.App("diffuserve", image=image)


@app.function(volumes={WEIGHTS: weights}, timeout=7_200)
def fetch() -> None:
    """Download the model onto the Volume, once, by a machine without a GPU: `modal run FILE::fetch`."""
    import subprocess

    subprocess.run(["diffuserve", "pull", SETTINGS["model"]], check=True)
    weights.commit()


@app.cls(
    gpu=GPU,
    volumes={WEIGHTS: weights},
    enable_memory_snapshot=True,
    experimental_options={"enable_gpu_snapshot": True},  # an alpha of Modal: without it, only load again
    scaledown_window=300,
    startup_timeout=1_800,
    timeout=600,
)
@modal.concurrent(max_inputs=64, target_inputs=16)  # they share the engine's steps
class Images:
    """Draws for callers in Python: `modal.Cls.from_name("diffuserve", "Images")`."""

    @modal.enter(snap=True)
    def load(self) -> None:
        """Load the model; a deployed app snapshots the container after this."""
        from diffuserve.integrations.modal.images import ModalImages

        self.images = ModalImages(SETTINGS)

    @modal.enter(snap=False)
    def wake(self) -> None:
        """Go on after each restore."""
        self.images.wake()

    @modal.method()
    async def generate(self, **values: Any) -> dict[str, Any]:
        """Return the image files, seeds and warnings of a request; errors are ValueError or RuntimeError."""
        return await self.images.draw(values)

    @modal.method()
    def generate_batch(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of many requests, which share steps; one that fails has its `error`."""
        return self.images.draw_all(requests)

    @modal.exit()
    def close(self) -> None:
        """End the engine."""
        self.images.close()


@app.function(
    gpu=GPU,
    volumes={WEIGHTS: weights},
    secrets=[modal.Secret.from_name("diffuserve")],  # DIFFUSERVE_API_KEY, which clients send
    max_containers=1,  # each has a queue of its own, unless the secret names a database and a bucket
    scaledown_window=300,
    startup_timeout=1_800,
    timeout=600,
)
@modal.concurrent(max_inputs=1_000)
@modal.asgi_app()
def web() -> Any:
    """Serve every route of `diffuserve serve`: OpenAI's, jobs, events, the web page."""
    from diffuserve.integrations.asgi import ServerApp

    return ServerApp(**SETTINGS)


@app.local_entrypoint()
def main(prompt: str = "a red circle on a white background", output: str = "circle.png") -> None:
    """Draw one image: `modal run FILE --prompt "a blue star"`."""
    drawn = Images().generate.remote(prompt=prompt)
    with open(output, "wb") as file:
        file.write(drawn["images"][0])
