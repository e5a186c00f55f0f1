"""`diffuserve doctor`: the fitness of this machine, and what to do about it."""

import asyncio
from collections.abc import Sequence

import orjson
import typer
from rich.table import Table
from rich.text import Text

from diffuserve.cli import options
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.cli.doctor.check_result import CheckResult, Outcome
from diffuserve.cli.doctor.checks import check_all
from diffuserve.cli.doctor.facts import Facts, ModelFacts
from diffuserve.cli.doctor.fit import loaded_item_bytes
from diffuserve.cli.environment import unknown_variables
from diffuserve.cli.exit_codes import FAILED
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization, parse_quantization
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve doctor

  diffuserve doctor --model flux-schnell --device cuda

  diffuserve doctor --model flux-dev --quantization int8 --offload text

  diffuserve doctor --server https://images.example.com --json
"""

_COLORS = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.FAILED: "red"}


@options.takes_settings(
    *("server", "api_key", "model", "role", "device", "dtype", "quantization", "offload", "host", "port"),
    *options.MODEL_STORE_OPTIONS,
    *("data_dir", "database_url", "valkey_url"),
)
def doctor(settings: Settings, as_json: options.Json = False) -> None:
    """Check this machine, its settings and its services, and say what to do about what is wrong.

    It looks at what `serve` would use with the same options, and leaves nothing behind. With --server it
    also asks that server, with the key. The exit code is 1 if a check failed.
    """
    checked = check_all(asyncio.run(gather(settings)))
    if as_json:
        echo(orjson.dumps(checked, option=orjson.OPT_INDENT_2).decode())
    else:
        results().print(_table(checked))
    raise typer.Exit(FAILED if any(result.outcome is Outcome.FAILED for result in checked) else 0)


async def gather(settings: Settings) -> Facts:
    """Look at everything; what takes long is looked at together."""
    from diffuserve.cli.doctor import machine, services

    engine = settings.engine_process
    folder = machine.local_folder(engine.model, engine.stored)
    torch, (database, bucket, valkey), server = await asyncio.gather(
        asyncio.to_thread(machine.torch_facts, engine.device, engine.dtype, folder),
        services.store_facts(settings),
        services.server_facts(settings),
    )
    model = ModelFacts(name=engine.model)
    if torch.is_installed:
        item_bytes = loaded_item_bytes(torch, engine.dtype, machine.stored_dtype(engine.model))
        model = machine.model_facts(
            engine.model, settings.worker.own_process.parts, engine.stored, item_bytes
        )
    return Facts(
        machine=machine.machine_facts(),
        torch=torch,
        disk=machine.disk_facts(settings.data_dir),
        database=database,
        port=machine.port_facts(settings.host, settings.port),
        model=model,
        wanted_device=engine.device,
        wanted_quantization=parse_quantization(engine.quantization) or Quantization.NONE,
        wanted_offload=Offload(engine.offload),
        bucket=bucket,
        valkey=valkey,
        server=server,
        unknown_variables=unknown_variables(),
    )


def _table(checked: Sequence[CheckResult]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for result in checked:
        outcome = Text(result.outcome.value, style=_COLORS[result.outcome])
        told = f"{result.detail}\n→ {result.remedy}" if result.remedy else result.detail
        table.add_row(outcome, Text(result.check, style="bold"), Text(told))
    return table
