"""Options of the commands that draw, derived from the fields of a request.

`takes_request` gives a command an option for each field, so that flag, type, help and default are declared
with the field alone.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Final

import typer

from diffuserve.cli.adapter_files import with_files
from diffuserve.cli.completion import sampler_names
from diffuserve.cli.images.clips import ClipOptions
from diffuserve.cli.images.input_images import image_input
from diffuserve.cli.options import parse_size, set_signature
from diffuserve.cli.panels import CLIPS, INPUT_IMAGES
from diffuserve.domain.requests.params import FIELDS, GenerationParams
from diffuserve.domain.requests.request_fields import FieldKind, RequestField, Topic
from diffuserve.settings import Settings

_TYPES: Mapping[FieldKind, Any] = {
    FieldKind.TEXT: str,
    FieldKind.CHOICE: str,
    FieldKind.INTEGER: int,
    FieldKind.NUMBER: float,
    FieldKind.IMAGE: str,
    FieldKind.IMAGES: list[str],
    FieldKind.ADAPTERS: list[str],
    FieldKind.CONTROLS: list[str],
}
_METAVARS: Mapping[FieldKind, str] = {
    FieldKind.TEXT: "TEXT",
    FieldKind.CHOICE: "NAME",
    FieldKind.CONTROLS: "NAME[:WEIGHT[:START-END]]=IMAGE",
}
BY_FILE: Final = "NAME|FILE"
"""Ways in which the commands that load a model themselves take adapters."""
_PANELS: Mapping[Topic | None, str | None] = {
    None: None,
    Topic.IMAGE: INPUT_IMAGES,
    Topic.CONTROL: INPUT_IMAGES,
    Topic.IMAGE_PROMPT: INPUT_IMAGES,
    Topic.CLIP: CLIPS,
}
_HELPS: Mapping[str, str] = {
    "width": "Width in pixels, instead of --size.",
    "height": "Height in pixels, instead of --size.",
}
_RANDOM_SEED = -1
"""Seed that means a random one, as other programs have it."""
_COMPLETIONS = {"sampler": sampler_names}
_ORDER = (
    *("width", "height", "num_inference_steps", "seed", "num_images"),
    *("guidance_scale", "negative_prompt", "sampler"),
)
"""Options that most requests have; others come after them in each panel."""
_SIZE = inspect.Parameter(
    "size",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        str | None, typer.Option(metavar="WxH", help="Size in pixels; by default the model's.")
    ],
)


@dataclass(frozen=True)
class Asked:
    """Values of a command's options, by the names of fields."""

    values: Mapping[str, Any]

    @property
    def clip(self) -> ClipOptions:
        """Values that say how long a clip is."""
        return ClipOptions(*(self.values[name] for name in ("num_frames", "seconds", "fps")))

    def with_files(self, settings: Settings) -> tuple["Asked", Settings]:
        """Return adapters that are given by their files as names, and the settings with these files.

        Raise `InvalidParams` for a file that is not there.
        """
        adapters, files = with_files(self.values["adapters"] or (), settings.engine_process.adapter_files)
        asked = Asked({**self.values, "adapters": adapters or None})
        return asked, settings.model_copy(update={"adapter_files": files})

    def requests(self, prompts: Sequence[str]) -> list[GenerationParams]:
        """Return a request for each prompt, with seeds that count on. Raise `InvalidParams`."""
        values = dict(self.values)
        seed, num_images = values.pop("seed"), values["num_images"]
        seed = None if seed == _RANDOM_SEED else seed
        return [
            GenerationParams(prompt=prompt, seed=None if seed is None else seed + i * num_images, **values)
            for i, prompt in enumerate(prompts)
        ]


def takes_request(
    images: str, adapters_by: str = "NAME", without: tuple[str, ...] = (), **helps: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a request in place of its parameter `asked`, which receives an `Asked`.

    `images` lists the ways in which an image is named, such as `PATH|URL`, and `adapters_by` those of an
    adapter. The command has none of the fields `without`, and another help for those of `helps`.
    """
    declared = {name: each for name, each in FIELDS.items() if name not in ("prompt", *without)}
    in_order = sorted(declared.values(), key=_place)
    said = {**_HELPS, **helps}
    metavars = {**_METAVARS, FieldKind.ADAPTERS: f"{adapters_by}[:WEIGHT]"}
    options = [_parameter(each, images, metavars, said.get(each.name, each.help)) for each in in_order]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*settings: Any, **arguments: Any) -> None:
            size = parse_size(arguments.pop("size"))
            values = {name: arguments.pop(name) for name in declared}
            values |= {name: image_input(values[name]) for name in declared if _takes_several(declared[name])}
            command(*settings, asked=Asked(values | _sides(size, values)), **arguments)

        set_signature(run, list(_expanded(inspect.signature(command).parameters.values(), options)))
        return run

    return decorate


def _expanded(
    own: Iterable[inspect.Parameter], options: Sequence[inspect.Parameter]
) -> Iterator[inspect.Parameter]:
    """Yield a command's own parameters, with the options where `asked` stands."""
    for parameter in own:
        if parameter.name == "asked":
            yield from (_SIZE, *options)
        else:
            yield parameter


def _place(declared: RequestField) -> tuple[int, int]:
    """Return the place of an option in the help; those of one panel stand together."""
    name = declared.name
    return (list(_PANELS).index(declared.topic), _ORDER.index(name) if name in _ORDER else len(_ORDER))


def _sides(size: tuple[int | None, int | None], values: Mapping[str, Any]) -> dict[str, int | None]:
    """Return width and height. Raise `typer.BadParameter` if they are given twice."""
    width, height = values.get("width"), values.get("height")
    if size != (None, None) and (width or height):
        raise typer.BadParameter("give --size, or --width and --height")
    return {"width": width or size[0], "height": height or size[1]}


def _takes_several(declared: RequestField) -> bool:
    return declared.kind is FieldKind.IMAGES


def _parameter(
    declared: RequestField, images: str, metavars: Mapping[FieldKind, str], help: str
) -> inspect.Parameter:
    option = typer.Option(
        *declared.flags,
        metavar=metavars.get(declared.kind, images if declared.is_image else None),
        help=help.format(names=images.replace("|", " or ")),
        autocompletion=_COMPLETIONS.get(declared.name),
        rich_help_panel=_PANELS[declared.topic],
    )
    annotation = _TYPES[declared.kind]
    return inspect.Parameter(
        declared.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=declared.default,
        annotation=Annotated[annotation if declared.default is not None else annotation | None, option],
    )
