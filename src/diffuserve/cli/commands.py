"""The commands as `diffuserve --help` shows them: under a heading each, with a line of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from diffuserve.cli.lazy import LazyCommand
from diffuserve.domain.extras import Extra

_PANELS: Final[Mapping[str, tuple[LazyCommand, ...]]] = {
    "First steps": (
        LazyCommand(
            "generate",
            "diffuserve.cli.draw.generate",
            "Generate images on this machine, without a server.",
            needs_arguments=True,
            extra=Extra.ENGINE,
        ),
        LazyCommand(
            "run",
            "diffuserve.cli.draw.prompt_loop",
            "Load a model once, and draw prompt after prompt.",
            extra=Extra.ENGINE,
        ),
        LazyCommand(
            "serve",
            "diffuserve.cli.servers.serve",
            "Serve a model on this machine: API, queue and one worker.",
            extra=Extra.ENGINE,
        ),
        LazyCommand(
            "stop",
            "diffuserve.cli.servers.stop",
            "Stop the server that runs on this machine.",
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "submit",
            "diffuserve.cli.draw.submit",
            "Submit a job to a server, and fetch its images.",
            needs_arguments=True,
        ),
        LazyCommand(
            "doctor",
            "diffuserve.cli.doctor.command",
            "Check this machine and its settings, and say what to do.",
        ),
        LazyCommand(
            "demo",
            "diffuserve.cli.servers.demo",
            "Start a server and run jobs on each bundled model.",
            extra=Extra.ENGINE,
        ),
    ),
    "Models": (
        LazyCommand(
            "list",
            "diffuserve.cli.store.models",
            "List the models on this machine.",
            attribute="list_models",
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "show",
            "diffuserve.cli.store.show",
            "Show what is known of a model: size, defaults, abilities, license.",
            needs_arguments=True,
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "models",
            "diffuserve.cli.store.stored_models",
            "Publish models in a bucket, fetch and verify them.",
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "adapters",
            "diffuserve.cli.store.adapters",
            "Give adapters (LoRA) names that requests ask for, list and remove them.",
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "pull",
            "diffuserve.cli.store.pull",
            "Download a model from the hub, once.",
            needs_arguments=True,
            extra=Extra.ENGINE,
        ),
        LazyCommand(
            "import",
            "diffuserve.cli.store.import_model",
            "Make a model of a single file of weights, once.",
            attribute="import_model",
            needs_arguments=True,
            extra=Extra.ENGINE,
        ),
        LazyCommand(
            "rm",
            "diffuserve.cli.store.models",
            "Remove a model that was pulled or imported, and free its space.",
            needs_arguments=True,
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "quantize",
            "diffuserve.cli.store.quantize",
            "Write a model with weights of fewer bits into a folder.",
            needs_arguments=True,
            extra=Extra.ENGINE,
        ),
        LazyCommand(
            "compile",
            "diffuserve.cli.store.compile",
            "Compile a model's blocks for this machine's GPU, once.",
            attribute="compile_model",
            needs_arguments=True,
            extra=Extra.ENGINE,
        ),
        LazyCommand(
            "calibrate",
            "diffuserve.cli.draw.calibrate",
            "Measure a model, to predict its costs.",
            extra=Extra.ENGINE,
        ),
    ),
    "Jobs and workers": (
        LazyCommand("jobs", "diffuserve.cli.client.jobs", "List, show, cancel and requeue jobs."),
        LazyCommand(
            "batches", "diffuserve.cli.client.batches", "Submit thousands of jobs at once, and follow them."
        ),
        LazyCommand("files", "diffuserve.cli.client.files", "Upload images for jobs, list and delete them."),
        LazyCommand("workers", "diffuserve.cli.operate.workers", "List and drain workers."),
        LazyCommand(
            "webhooks", "diffuserve.cli.client.webhooks", "Try out webhooks, and send messages again."
        ),
        LazyCommand("ps", "diffuserve.cli.operate.ps", "Show what a server runs: workers, models, jobs."),
        LazyCommand("top", "diffuserve.cli.operate.top", "Watch workers, queue, throughput and jobs, live."),
    ),
    "Serve": (
        LazyCommand(
            "api",
            "diffuserve.cli.servers.api",
            "Run the control plane alone: API and queue, without a GPU.",
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "worker",
            "diffuserve.cli.servers.worker",
            "Generate images for a control plane elsewhere.",
            extra=Extra.ENGINE,
        ),
        LazyCommand(
            "fleet",
            "diffuserve.cli.fleet.group",
            "Keep as many workers on Ray or Slurm as the control plane asks for.",
        ),
        LazyCommand(
            "moderate",
            "diffuserve.cli.servers.moderate",
            "Serve a classifier of prompts, compatible with OpenAI's moderation API.",
            needs_arguments=True,
            extra=Extra.TRANSFORMERS,
        ),
        LazyCommand(
            "integrations",
            "diffuserve.cli.integrations.group",
            "Run our engine inside Triton, TorchServe and other servers.",
            extra=Extra.SERVER,
        ),
    ),
    "Operate": (
        LazyCommand(
            "keys",
            "diffuserve.cli.operate.keys",
            "Create, list, rotate and revoke API keys.",
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "bench",
            "diffuserve.cli.operate.bench",
            "Put servers under load, and measure what they give: ours and anybody's.",
            needs_arguments=True,
            extra=Extra.PICTURES,
        ),
        LazyCommand(
            "tune",
            "diffuserve.cli.operate.tune",
            "Find the engine's best options for a load and an objective.",
            extra=Extra.ENGINE,
        ),
        LazyCommand(
            "fairness",
            "diffuserve.cli.operate.fairness",
            "Show and reset what tenants were charged.",
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "cost", "diffuserve.cli.operate.cost", "Show what 1,000 images cost, measured or by prices."
        ),
        LazyCommand(
            "safety",
            "diffuserve.cli.operate.safety",
            "Explain verdicts of the filters, and audit them.",
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "db", "diffuserve.cli.operate.db", "Bring the server's database up to date.", extra=Extra.SERVER
        ),
    ),
}

COMMANDS: Final = tuple(
    replace(command, panel=panel) for panel, commands in _PANELS.items() for command in commands
)
