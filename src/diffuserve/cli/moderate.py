"""`diffuserve moderate`: a moderation API for the prompts of control planes."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffuserve.domain.errors import InvalidParams

if TYPE_CHECKING:
    from fastapi import FastAPI

    from diffuserve.safety.text_checkpoint import TextCheckpoint

_HOST, _PORT = "127.0.0.1", 8_001
_LAST_PORT = 65_535
# As in `ModerationLimits`, which this file does not load before it is needed.
_MAX_INPUTS, _MAX_CHARACTERS, _MAX_WAITING = 32, 16_000, 64

EXAMPLES = """
Examples:

  diffuserve moderate /models/text-moderation

  diffuserve moderate /models/text-moderation --host 0.0.0.0 --port 8001 --harmless OK

  curl http://127.0.0.1:8001/v1/moderations -H 'content-type: application/json' -d '{"input": "a red circle"}'

  DIFFUSERVE_PROMPT_FILTER=http://127.0.0.1:8001 diffuserve serve
"""


def moderate(  # noqa: PLR0913 (a command has as many arguments as options)
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A sequence classifier in transformers' format.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = _HOST,
    port: Annotated[
        int, typer.Option(min=0, max=_LAST_PORT, help="Port to listen on; 0 takes a free one.")
    ] = _PORT,
    harmless: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="Label of harmless texts, which flags nothing; may be repeated."),
    ] = None,
    max_inputs: Annotated[int, typer.Option(min=1, help="Texts in one request.")] = _MAX_INPUTS,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters in one request.")] = _MAX_CHARACTERS,
    max_waiting: Annotated[int, typer.Option(min=1, help="Open requests at a time.")] = _MAX_WAITING,
) -> None:
    """Serve a text classifier from a folder, compatible with OpenAI's moderation API.

    Weights are read from safetensors files alone. There are no API keys: everyone who reaches the address
    may send requests. Its address goes to stdout, on one line, once it accepts requests.
    """
    from diffuserve.cli.http_server import run
    from diffuserve.cli.logs import log_to_stderr
    from diffuserve.safety.moderation_app import ModerationLimits, create_moderation_app

    log_to_stderr()
    scorer = _load(folder, harmless or [])
    limits = ModerationLimits(max_inputs, max_characters, max_waiting)
    run(_serve(create_moderation_app(scorer, limits, harmless or []), host, port))


def _load(folder: Path, harmless: list[str]) -> "TextCheckpoint":
    try:
        from diffuserve.safety.text_checkpoint import TextCheckpoint

        scorer = TextCheckpoint(folder)
    except ImportError as error:
        remedy = f"needs the package {error.name}: pip install 'diffuserve[engine]'"
        raise InvalidParams("folder", str(folder), remedy) from error
    for label in harmless:
        if label not in scorer.labels:
            raise InvalidParams("harmless", label, f"the classifier's labels are {', '.join(scorer.labels)}")
    return scorer


async def _serve(app: "FastAPI", host: str, port: int) -> None:
    from contextlib import closing

    from diffuserve.cli.http_server import address_of, listen, serving, stop_on_signals

    stop = stop_on_signals()
    with closing(listen(host, port)) as listener:
        async with serving(app, listener):
            logging.getLogger(__name__).info("listening on %s", address_of(listener))
            print(address_of(listener), flush=True)
            await stop.wait()
