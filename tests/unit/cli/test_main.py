"""The command line without a model: bad input, help and versions."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from diffuserve.cli.commands import COMMANDS
from diffuserve.settings import Settings
from support.command import run
from support.waiting import HANG_SECONDS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a star", "--size", "100x128"], "width=100"),
        (["a star", "--size", "-16x128"], "width=-16"),
        (["a star", "--size", "large"], "--size 128x96"),
        (["a star", "--steps", "0"], "num_inference_steps=0"),
        (["a star", "--steps", "101"], "num_inference_steps=101"),
        (["a star", "--seed", "-2"], "seed=-2"),
        (["a star", "--guidance", "nan"], "guidance_scale=nan"),
        (["a star", "--guidance", "101"], "guidance_scale=101"),
        (["a star", "--num-images", "0"], "num_images=0"),
        (["a star", "--num-images", "10000"], "num_images=10000"),
        ([" "], "prompt=' '"),
        (["x" * 2001], "2,001 characters"),
        (["a star", "--model", "tiny-fluxx"], "did you mean 'tiny-flux'?"),
        (["a star", "--model", "/"], "model_index.json"),
        (["a star", "--device", "cuda:99"], "cuda:99"),
        (["a star", "--dtype", "int3"], "int3"),
        (["a star", "-o", "image.bmp"], "'.bmp'"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "generate", *arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_a_bad_setting_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIFFUSERVE_MODEL", "no-such-model")
    assert run(monkeypatch, "generate", "a star") == 2
    assert "no-such-model" in capsys.readouterr().err


def test_an_unknown_variable_is_warned_of_once_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIFFUSERVE_PROT", "8001")
    assert run(monkeypatch, "list") == 0
    shown = capsys.readouterr()
    assert shown.err.count("DIFFUSERVE_PROT is not a setting") == 1
    assert "did you mean DIFFUSERVE_PORT?" in shown.err
    assert "DIFFUSERVE_PROT" not in shown.out


def test_the_worker_of_a_server_does_not_repeat_the_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIFFUSERVE_PROT", "8001")
    assert run(monkeypatch, "worker", "--parent-fd", "many") == 2
    assert "DIFFUSERVE_PROT" not in capsys.readouterr().err


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIFFUSERVE_CACHE_DIR", str(tmp_path))
    assert Settings().cache_dir == tmp_path


def test_the_version_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("diffuserve 0.")


@pytest.mark.parametrize(
    "command",
    [
        [],
        *(
            ["generate"],
            ["run"],
            ["list"],
            ["models"],
            ["pull"],
            ["rm"],
            ["calibrate"],
            ["demo"],
            ["ps"],
            ["top"],
            ["doctor"],
        ),
        *(["serve"], ["api"], ["worker"], ["submit"]),
        *(["jobs"], ["jobs", "list"], ["jobs", "show"], ["jobs", "cancel"]),
        *(["keys"], ["keys", "create"], ["keys", "list"], ["keys", "revoke"]),
        *(["db"], ["db", "upgrade"]),
    ],
)
def test_every_command_has_help(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *command, "--help") == 0
    assert "Usage" in capsys.readouterr().out


def test_help_imports_no_command() -> None:
    modules = modules_of("--help")
    commands = {command.module for command in COMMANDS}
    assert not {"torch", "fastapi", "sqlalchemy", "pydantic", "httpx", *commands} & modules


def test_help_groups_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    headings = [line.strip("╭─╮ ") for line in shown.splitlines() if line.startswith("╭")]
    assert headings == ["Options", "First steps", "Models", "Jobs and workers", "Serve", "Operate"]
    for command in COMMANDS:
        is_shown = any(line.startswith(f"│ {command.name} ") for line in shown.splitlines())
        assert is_shown is not command.hidden


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("diffuserve pu", ["pull"]),
        ("diffuserve jobs ca", ["cancel"]),
        ("diffuserve top --on", ["--once"]),
        ("diffuserve generate x --model flux-s", ["flux-schnell"]),
    ],
)
def test_shells_complete_commands_and_options(
    words: str, completions: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_DIFFUSERVE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert run(monkeypatch) == 0
    assert capsys.readouterr().out.split() == completions


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_by_a_script(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    assert run(monkeypatch, "--show-completion") == 0
    assert f"_DIFFUSERVE_COMPLETE=complete_{shell}" in capsys.readouterr().out


def test_a_base_install_has_what_commands_without_an_engine_import() -> None:
    names = ("list", "pull", "rm", "ps", "top", "doctor", "submit", "jobs")
    code = f"from diffuserve.cli.commands import COMMANDS; [c.load() for c in COMMANDS if c.name in {names}]"
    assert not {"torch", "huggingface_hub", "transformers", "einops"} & modules_after(code)


def test_a_command_is_imported_without_the_others() -> None:
    modules = modules_of("api", "--help")
    assert "diffuserve.cli.servers.api" in modules
    assert (
        not {"diffuserve.cli.draw.submit", "diffuserve.cli.servers.demo", "httpx", "PIL", "numpy"} & modules
    )


def modules_of(*arguments: str) -> set[str]:
    """Return the names of the modules that a command imports."""
    return modules_after(f"from diffuserve.cli.main import app; app({arguments!r}, standalone_mode=False)")


def modules_after(code: str) -> set[str]:
    """Return the names of the modules that are imported once this code has run."""
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules, file=sys.stderr)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stderr.split())


@pytest.mark.parametrize(
    "command",
    [["submit", "a star"], ["ps"], ["top"], ["jobs", "list"], ["jobs", "show", "x"], ["jobs", "cancel", "x"]],
)
def test_an_unavailable_server_is_one_clear_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patience = (
        HANG_SECONDS if command == ["ps"] else 0.1
    )  # `ps` has none: it is asked whether a server is there
    monkeypatch.setattr("diffuserve.cli.client.connect.PATIENCE_SECONDS", patience)
    assert run(monkeypatch, *command, "--server", "http://127.0.0.1:1") == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: http://127.0.0.1:1 does not respond")
    assert "--server or DIFFUSERVE_SERVER" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a star", "--size", "0x128"], "width=0"),
        (["a star", "--size", "64x64", "--width", "64"], "--width"),
        (["a star", "--steps", "101"], "num_inference_steps=101"),
        (["a star", "--priority", "urgent"], "urgent"),
        (["a star", "-o", "star.bmp"], "'.bmp'"),
    ],
)
def test_an_invalid_submission_is_refused_without_a_server(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "submit", *arguments, "--server", "http://127.0.0.1:1") == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("text", "told"), [("\n", "is empty"), ("a" * 2_001, "2,001 characters")])
def test_a_prompt_from_standard_input_is_checked_as_others_are(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert run(monkeypatch, "submit", "-", "--server", "http://127.0.0.1:1") == 2
    assert told in capsys.readouterr().err


def test_that_a_server_is_away_is_told_before_an_http_client_is_imported() -> None:
    command = "app(['ps', '--server', 'http://127.0.0.1:1'], standalone_mode=False)"
    code = f"""
import contextlib
from diffuserve.cli.main import app
with contextlib.suppress(Exception):
    {command}
"""
    assert not {"httpx", "httpcore"} & modules_after(f"exec({code!r})")


@pytest.mark.parametrize("name", ["triton", "torchserve", "modal", "comfyui"])
def test_what_cannot_be_written_for_another_server_is_one_clear_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "integrations", name, "/proc/images.py") == 2
    assert capsys.readouterr().err.startswith(
        "error: place='/proc/images.py': cannot be written (No such file"
    )
