"""`diffuserve fleet`: its commands, by cluster manager."""

import typer

from diffuserve.cli.lazy import LazyCommand, lazy_group

EXAMPLES = """
Examples:

  diffuserve fleet ray --model flux-schnell --min 1 --max 8

  diffuserve fleet slurm --model flux-schnell --max 20 -- --partition=gpu --time=12:00:00

  diffuserve fleet ray status --model flux-schnell

  diffuserve fleet slurm stop --model flux-schnell
"""

fleet = typer.Typer(
    name="fleet",
    help="Keep as many workers as the control plane asks for.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    cls=lazy_group(
        LazyCommand("ray", "diffuserve.cli.fleet.ray", "Keep workers as actors of Ray.", attribute="on_ray"),
        LazyCommand(
            "slurm", "diffuserve.cli.fleet.slurm", "Keep workers as jobs of Slurm.", attribute="on_slurm"
        ),
    ),
)
