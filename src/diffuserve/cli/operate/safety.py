"""`diffuserve safety`: why something passes or not, and what was kept out."""

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action, AuditEntry, FilterInfo, Verdict
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve safety check "a portrait of a knight"

  diffuserve safety check out/image.png

  diffuserve safety audit --tenant studio
"""

BLOCKED = 1
_COLORS = {Action.ALLOW: "green", Action.FLAG: "yellow", Action.BLUR: "yellow", Action.BLOCK: "red"}

safety = typer.Typer(
    name="safety",
    help="Verdicts of the filters, and their audit.",
    epilog=EXAMPLES,
    no_args_is_help=True,
)


@safety.command(epilog=EXAMPLES, no_args_is_help=True)
@options.takes_settings("prompt_filter", "image_filter")
def check(
    settings: Settings,
    what: Annotated[str, typer.Argument(metavar="PROMPT|FILE", help="A prompt, or an image file.")],
    tenant: Annotated[str, typer.Option(help="Apply the rules of this tenant.")] = "",
    as_json: options.Json = False,
) -> None:
    """Explain a verdict. The exit code is 1 if the filter blocks, and 0 otherwise."""
    if Path(what).is_file():
        info, verdict = _judge_image(settings, Path(what))
    else:
        info, verdict = asyncio.run(_judge_prompt(settings, what, tenant))
    if as_json:
        echo(json.dumps(_explained(info, verdict), indent=2))
    else:
        _print(info, verdict)
    raise typer.Exit(BLOCKED if verdict.action is Action.BLOCK else 0)


@safety.command()
@options.takes_settings("data_dir", "database_url")
def audit(
    settings: Settings,
    tenant: Annotated[str | None, typer.Option(help="Entries of this tenant alone.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 50,
    as_json: options.Json = False,
) -> None:
    """List what the filters flagged or blocked, directly from the server's database, newest first."""
    entries = asyncio.run(_audit(settings, tenant, limit))
    if as_json:
        echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    columns = ("time", "tenant", "stage", "category", "action", "job", "prompt's hash", "filter")
    table = Table(*columns, box=None, header_style="bold")
    for entry in entries:
        table.add_row(*_row(entry))
    results().print(table)


async def _judge_prompt(settings: Settings, prompt: str, tenant: str) -> tuple[FilterInfo, Verdict]:
    from diffuserve.prompts.cleaning import clean
    from diffuserve.wiring.safety import open_prompt_filter

    prompt_filter = open_prompt_filter(settings)
    if prompt_filter is None:
        raise InvalidParams("prompt_filter", "none", "no filter is on; name one")
    try:
        return prompt_filter.info, await prompt_filter.check(clean(prompt), tenant)
    finally:
        await prompt_filter.close()


def _judge_image(settings: Settings, path: Path) -> tuple[FilterInfo, Verdict]:
    from PIL import Image, UnidentifiedImageError

    from diffuserve.wiring.safety import choose_image_filter

    image_filter = choose_image_filter(settings)
    if image_filter is None:
        raise InvalidParams("image_filter", "none", "no filter is on; name one")
    try:
        with Image.open(path) as image:
            return image_filter.info, image_filter.check(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise InvalidParams("file", str(path), "is not an image that can be read") from error


async def _audit(settings: Settings, tenant: str | None, limit: int) -> list[AuditEntry]:
    from diffuserve.wiring.control import open_store

    async with open_store(settings) as store:
        return await store.audit.newest(tenant, limit)


def _explained(info: FilterInfo, verdict: Verdict) -> dict[str, Any]:
    return {
        "action": verdict.action,
        "category": verdict.category or None,
        "findings": [asdict(finding) for finding in verdict.findings],
        "filter": asdict(info),
    }


def _print(info: FilterInfo, verdict: Verdict) -> None:
    console = Console(highlight=False, soft_wrap=True)
    category = f" ({verdict.category})" if verdict.category else ""
    console.print(f"{verdict.action}{category}", style=_COLORS[verdict.action])
    if verdict.findings:
        table = Table("category", "action", "score", "source", "why", box=None, header_style="bold")
        for finding in verdict.findings:
            score = f"{finding.score:.2f}"
            table.add_row(finding.category, finding.action, score, finding.source, finding.detail)
        console.print(table)
    console.print(f"by {info.name} {info.version}", style="dim")


def _row(entry: AuditEntry) -> tuple[str, ...]:
    return (
        datetime.fromtimestamp(entry.created_at, UTC).isoformat(timespec="seconds"),
        entry.tenant_id,
        entry.stage,
        entry.category,
        entry.action,
        entry.job_id,
        entry.prompt_hash[:12],
        entry.filter,
    )
