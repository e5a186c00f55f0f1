"""Options of other programs are answered with ours."""

from typing import Any

import pytest
import typer.main

from diffuserve.cli.foreign_options import _OURS
from diffuserve.cli.main import app
from support.command import Invoke


@pytest.mark.parametrize(
    ("command", "option", "ours"),
    [
        *(("generate", option, "--guidance?") for option in ("--cfg", "--cfg-scale", "--guidance_scale")),
        ("generate", "-s", "--steps?"),
        ("generate", "--ckpt", "--model?"),
        ("generate", "--prompt", "a prompt is given without one"),
        ("run", "--negative_prompt", "--negative-prompt?"),
        ("submit", "--n", "--num-images?"),
        ("submit", "--out", "--output?"),
        ("serve", "--listen", "--host?"),
        ("ps", "--url", "--server?"),
    ],
)
def test_an_option_of_another_program_is_answered_with_ours(
    command: str, option: str, ours: str, invoke: Invoke
) -> None:
    refused = invoke(command, option, "7")
    assert refused.code == 2
    assert f"{option};" in refused.err
    assert ours.split()[-1] in refused.err


def test_what_a_command_does_not_have_is_not_offered(invoke: Invoke) -> None:
    assert "did you mean" not in invoke("serve", "--cfg", "7").err
    assert "--device" in invoke("generate", "--devise", "cpu").err


def test_every_name_of_the_table_is_an_option() -> None:
    group: Any = typer.main.get_command(app)
    commands = ("generate", "submit", "serve")
    known = {flag for name in commands for each in group.commands[name].params for flag in each.opts}
    assert {*_OURS} - {"PROMPT"} <= known
