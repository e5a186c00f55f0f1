"""Run a benchmark by its name, or list them.

python -m benchmarks                       # their names, and what each measures
python -m benchmarks engine --rounds 3     # one of them, with its own options
python -m benchmarks engine --keep-busy    # keep its result even if other work ran beside it
"""

import ast
import os
import sys
from pathlib import Path

from benchmarks.shared.report import KEEP_BUSY

BENCHMARKS = {
    "engine": "engine.engine",
    "unet": "engine.unet",
    "any-pipeline": "engine.any_pipeline",
    "packed-families": "engine.packed_families",
    "batch": "engine.batch",
    "adapters": "engine.adapters",
    "policies": "engine.policies",
    "latency": "engine.latency",
    "any-pipeline-parity": "engine.any_pipeline_parity",
    "quantization": "engine.quantization",
    "few-bits": "engine.few_bits",
    "offload": "engine.offload",
    "video": "video.video",
    "lockstep": "ranks.lockstep",
    "tensor-parallel": "ranks.tensor_parallel",
    "collectives": "ranks.collectives",
    "gpu": "gpu.gpu",
    "kernels": "gpu.kernels",
    "serve": "serve.serve",
    "serve-peers": "serve.serve_peers",
    "triton": "serve.triton",
    "referee": "serve.referee",
    "eta": "serve.eta",
    "decode-workers": "serve.decode_workers",
    "control": "control.control",
    "fleet": "control.fleet",
    "fleet-engines": "fleet.engines",
    "followers": "control.followers",
    "operations": "control.operations",
    "tracing": "control.tracing",
    "start": "start.start",
    "cold-start": "start.cold_start",
    "peers": "start.peers",
    "image-filter": "safety.image_filter",
    "judging": "safety.judging",
    "claims": "claims.claims",
    "chaos": "chaos.run",
    "autoscaling": "simulate.autoscaling",
    "adversaries": "simulate.adversaries",
    "decode-fleet": "simulate.decode_workers",
    "preemption": "simulate.preemption",
    "spot-workers": "simulate.spot_workers",
}
"""The module of each, by its name."""
_KEEP_BUSY = "--keep-busy"


def main() -> None:
    if len(sys.argv) == 1 or sys.argv[1] in ("-h", "--help"):
        print("\n".join(f"{name:18}{summary(module)}" for name, module in BENCHMARKS.items()))
        return
    name, *options = sys.argv[1:]
    if name not in BENCHMARKS:
        sys.exit(f"no benchmark is called {name!r}; there are {', '.join(BENCHMARKS)}")
    environment = dict(os.environ)
    if _KEEP_BUSY in options:
        options.remove(_KEEP_BUSY)
        environment[KEEP_BUSY] = "1"
    command = [sys.executable, "-m", f"benchmarks.{BENCHMARKS[name]}", *options]
    os.execve(sys.executable, command, environment)


def summary(module: str) -> str:
    """Return the first line of a module's docstring; the module is not imported."""
    source = Path(__file__).parent / f"{module.replace('.', '/')}.py"
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
