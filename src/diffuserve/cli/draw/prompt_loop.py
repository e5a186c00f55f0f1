"""`diffuserve run`: a model is loaded once, and draws prompt after prompt."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.completion import model_names
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.draw.generate import check
from diffuserve.cli.draw.loading import load_engine, uncollected
from diffuserve.cli.draw.request_options import BY_FILE, Asked, takes_request
from diffuserve.cli.exit_codes import FAILED
from diffuserve.domain.errors import DiffuserveError
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.engine.engine import Engine
    from diffuserve.engine_process.output.image_output import ImageOutput

EXAMPLES = """
Examples:

  diffuserve run

  diffuserve run flux-schnell --size 768x512 --open

  diffuserve run tiny-flux "a red circle"

  diffuserve run tiny-flux --steps 4 < prompts.txt
"""

_ENDS = ("/bye", "/exit", "/quit")
_HELP = (
    "a prompt is drawn; /bye or Ctrl-D ends; size, steps, seed and more are options of `diffuserve run`, "
    "which --help lists"
)
_CHECKED = "a red circle"
"""Prompt by which the model and all options are checked before anything is loaded."""


@options.takes_settings(
    *("device", "dtype", "quantization", "offload", "deterministic"),
    *("adapter_files", "controlnets", "image_prompter"),
    *("prompt_filter", "image_filter", "allow_unjudged_audio", "file_metadata"),
    *options.LOCAL_STORE_OPTIONS,
)
@takes_request(images="PATH|URL", adapters_by=BY_FILE, seed="Seed of each image; by default random.")
def run(
    settings: Settings,
    model: Annotated[
        str | None,
        typer.Argument(help="Model, as --model takes it.", autocompletion=model_names, show_default=False),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT…", help="What to draw, in place of lines that are typed."),
    ] = None,
    *,
    asked: Asked,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A folder for the images, clips or sounds.")
    ] = Path("out"),
    open_: options.Open = False,
) -> None:
    """Load a model once, and draw each line that is typed; /bye or Ctrl-D ends it.

    Images are shown in terminals that can show them, as kitty, iTerm2 and those of 16 million colors can.
    Their paths go to stdout, as those of `generate` do. With prompts after the model it draws these and ends.
    """
    if output.suffix and not output.is_dir():
        raise typer.BadParameter(f"-o names a folder here, and {output} looks like a file")
    if model is not None:
        settings = settings.model_copy(update={"model": model})
    asked, settings = asked.with_files(settings)
    console = Console(stderr=True)
    with ExitStack() as stack:
        with uncollected():
            from diffuserve.cli.preflight import fetched

            config = fetched(settings.engine_process)
            check(asked.requests(prompts or [_CHECKED]), settings, config, output, asked.clip)

            from diffuserve.engine_process.output.image_output import open_image_output

            beside = stack.enter_context(ThreadPoolExecutor(1))  # the image filter, while the model loads
            images = beside.submit(open_image_output, config.model, config.images)
            engine = stack.enter_context(load_engine(config, console))
        drawer = Drawer(engine, images.result().of(engine.pipeline), settings, config, asked, output, console)
        for prompt in prompts or typed_prompts(console):
            paths = drawer.draw(prompt)
            if open_:
                from diffuserve.cli.images.viewer import open_images

                open_images(paths, console)
            if prompts and not paths:
                raise typer.Exit(FAILED)


def typed_prompts(console: Console) -> Iterator[str]:
    """Yield the lines of standard input until `/bye`, but for empty ones and others that begin with a slash.

    Where a person types they are asked for, and earlier ones come back by the arrow keys.
    """
    with suppress(EOFError):
        while (line := _next_line(console).strip()) not in _ENDS:
            if line.startswith("/"):
                console.print(_HELP, style="dim")
            elif line:
                yield line


def _next_line(console: Console) -> str:
    """Return the next line of standard input. Raise `EOFError` at its end."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        import readline  # noqa: F401  # with it `input` edits lines, and remembers them

        return input("prompt> ")
    if sys.stdin.isatty():  # stdout is a file or a pipe, for paths alone
        console.print("prompt> ", end="", style="bold")
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


@dataclass(frozen=True)
class Drawer:
    """Draws one prompt after another with an engine that stays."""

    engine: "Engine"
    images: "ImageOutput"
    settings: Settings
    config: EngineProcessConfig
    asked: Asked
    output: Path
    console: Console

    def draw(self, prompt: str) -> list[Path]:
        """Draw a prompt, print the paths of its files and return them; what goes wrong is said."""
        try:
            paths = self._drawn(prompt)
        except DiffuserveError as error:
            self.console.print(f"error: {error}", style="red")
            return []
        echo("\n".join(map(str, paths)), nl=bool(paths))
        return paths

    def _drawn(self, prompt: str) -> list[Path]:
        from diffuserve.cli.draw.run import run_requests
        from diffuserve.cli.images.inline_images import show_image
        from diffuserve.cli.images.output import ImageWriter

        requests, destination = check(
            self.asked.requests([prompt]), self.settings, self.config, self.output, self.asked.clip
        )
        writer = ImageWriter(destination, self.images, requests[0].num_images, self.console)
        with closing(writer):
            run = run_requests(self.engine, requests, self.console, writer.save, writer.add_frames)
        for error in run.errors.values():
            raise error
        for result in run.finished:
            for image in result.images:
                show_image(self.console, image)
            for warning in result.warnings:
                self.console.print(f"warning: {warning}", style="yellow")
        return [path for index in sorted(writer.paths) for path in writer.paths[index]]
