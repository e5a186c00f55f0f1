"""Exit codes of engines, in words."""

import pytest

from diffuserve.agent.exit_codes import describe


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "exit code 1; its own message is above"),
        (-9, "killed by SIGKILL, as the kernel does when memory runs out"),
        (-6, "killed by SIGABRT"),
    ],
)
def test_an_exit_code_is_described(code: int, words: str) -> None:
    assert describe(code) == words
