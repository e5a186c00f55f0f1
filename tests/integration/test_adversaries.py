"""Strategies of tenants who want more than their share, each played for ten minutes of simulated time."""

import asyncio
from pathlib import Path

import pytest

from support.adversaries import GAMES, Outcome, play

MOST_OF_A_SHARE = 1.1
MOST_OF_A_WAIT = 1.25
"""What an honest tenant may wait, in waits beside another honest one, and one delay of the strategy's own."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Play two honest tenants."""
    return asyncio.run(play(GAMES["honest"], tmp_path_factory.mktemp("honest")))


PLAYED = [
    pytest.param(name, marks=[pytest.mark.slow] if game.like else [])
    for name, game in GAMES.items()
    if name != "honest"
]


@pytest.mark.parametrize("name", PLAYED)
async def test_no_strategy_gives_more_than_a_share(tmp_path: Path, honest: Outcome, name: str) -> None:
    found = await play(GAMES[name], tmp_path)
    assert found.share <= MOST_OF_A_SHARE
    assert found.wait <= MOST_OF_A_WAIT * honest.wait + GAMES[name].delay
