"""Options of the commands that draw are the fields of a request."""

from typing import Any

import pytest
import typer
import typer.main

from diffuserve.cli.draw.request_options import Asked, takes_request
from diffuserve.cli.main import app
from diffuserve.domain.requests.params import FIELDS

NOT_TAKEN = {"generate": {"prompt"}, "run": {"prompt"}, "submit": {"prompt", "max_sequence_length"}}


@pytest.mark.parametrize("command", NOT_TAKEN)
def test_every_field_has_its_option(command: str) -> None:
    group: Any = typer.main.get_command(app)
    given = {parameter.name: parameter for parameter in group.commands[command].params}
    for name, declared in FIELDS.items():
        if name in NOT_TAKEN[command]:
            assert getattr(given.get(name), "opts", []) in ([], [name]), "an argument, or nothing"
        else:
            assert tuple(given[name].opts) == declared.flags
            assert given[name].default == declared.default


def asked(**given: Any) -> Asked:
    """Return what a command is asked for by options, of which those that are left out have no value."""
    received: list[Asked] = []

    @takes_request(images="PATH")
    def draw(asked: Asked) -> None:
        received.append(asked)

    left_out = {name: declared.default for name, declared in FIELDS.items() if name != "prompt"}
    draw(**{"size": None} | left_out | given)
    return received[0]


def test_seeds_count_on_over_prompts_and_images() -> None:
    requests = asked(seed=7, num_images=2).requests(["a star", "a ring"])
    assert [(request.prompt, request.seed) for request in requests] == [("a star", 7), ("a ring", 9)]
    for seed in (None, -1):
        assert [request.seed for request in asked(seed=seed).requests(["a star", "a ring"])] == [None, None]


def test_a_size_is_both_sides() -> None:
    [request] = asked(size="96x64").requests(["a star"])
    assert (request.width, request.height) == (96, 64)
    with pytest.raises(typer.BadParameter, match="--size, or --width and --height"):
        asked(size="96x64", width=96)


def test_what_is_said_of_a_clip_is_told_apart() -> None:
    wanted = asked(seconds=2.0, fps=8)
    assert (wanted.clip.seconds, wanted.clip.fps, wanted.clip.num_frames) == (2.0, 8, None)
    assert wanted.requests(["a ball"])[0].fps == 8
