"""`diffuserve moderate`: a moderation API for the prompts of control planes."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffuserve.cli import options
from diffuserve.domain.backend_urls import LAST_PORT
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra
from diffuserve.safety.moderation_api.limits import ModerationLimits
from diffuserve.settings import LOOPBACK, Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from diffuserve.safety.classifiers.text_checkpoint import TextCheckpoint

_PORT = 8_001

EXAMPLES = """
Examples:

  diffuserve moderate /models/text-moderation

  diffuserve moderate /models/text-moderation --host 0.0.0.0 --port 8001 --harmless OK

  curl http://127.0.0.1:8001/v1/moderations -H 'content-type: application/json' -d '{"input": "a red circle"}'

  DIFFUSERVE_PROMPT_FILTER=http://127.0.0.1:8001 diffuserve serve
"""


@options.takes_settings(*options.LOG_OPTIONS)
def moderate(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A sequence classifier in transformers' format.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK,
    port: Annotated[
        int, typer.Option(min=0, max=LAST_PORT, help="Port to listen on; 0 takes a free one.")
    ] = _PORT,
    harmless: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="Label of harmless texts, which flags nothing; may be repeated."),
    ] = None,
    max_inputs: Annotated[
        int, typer.Option(min=1, help="Texts in one request.")
    ] = ModerationLimits.max_inputs,
    max_characters: Annotated[
        int, typer.Option(min=1, help="Characters in one request, of all its texts together.")
    ] = ModerationLimits.max_characters,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Open requests at a time; more get the response 503.")
    ] = ModerationLimits.max_waiting,
) -> None:
    """Serve a text classifier from a folder, compatible with OpenAI's moderation API.

    Weights are read from safetensors files alone. There are no API keys: everyone who reaches the address
    may send requests. Its address goes to stdout, on one line, once it accepts requests.
    """
    from diffuserve.cli.servers.event_loop import run
    from diffuserve.safety.moderation_api.app import create_moderation_app
    from diffuserve.telemetry.logs import configure_logs

    configure_logs(settings.logs)
    scorer = _load(folder, harmless or [])
    limits = ModerationLimits(max_inputs, max_characters, max_waiting)
    run(_serve(create_moderation_app(scorer, limits, harmless or []), host, port))


def _load(folder: Path, harmless: list[str]) -> "TextCheckpoint":
    try:
        from diffuserve.safety.classifiers.text_checkpoint import TextCheckpoint

        scorer = TextCheckpoint(folder)
    except ImportError as error:
        remedy = f"needs the package {error.name}: {Extra.TRANSFORMERS.remedy}"
        raise InvalidParams("folder", str(folder), remedy) from error
    for label in harmless:
        if label not in scorer.labels:
            raise InvalidParams("harmless", label, f"the classifier's labels are {', '.join(scorer.labels)}")
    return scorer


async def _serve(app: "FastAPI", host: str, port: int) -> None:
    from contextlib import closing

    from diffuserve.api.server.http_server import serving
    from diffuserve.cli.servers.event_loop import stop_on_signals
    from diffuserve.cli.servers.listening import address_of, description_of, listen

    stop = stop_on_signals()
    with closing(listen(host, port)) as listener:
        async with serving(app, listener):
            logging.getLogger(__name__).info("listening on %s", description_of(listener))
            print(address_of(listener), flush=True)
            await stop.wait()
