"""Doors for programs of other servers, which operators open by name."""

import pytest

from diffuserve.api.config import DoorName
from diffuserve.domain.errors import InvalidParams
from diffuserve.settings import Settings


def test_doors_are_closed_until_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().api_config(auth=True).open_doors == frozenset()
    monkeypatch.setenv("DIFFUSERVE_DOORS", "a1111, ComfyUI")
    assert Settings().api_config(auth=True).open_doors == {DoorName.A1111, DoorName.COMFYUI}


def test_a_name_of_no_door_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidParams, match=r"doors='a1111,cal': 'cal' is no door.*a1111, comfyui, fal"):
        Settings.with_options(doors="a1111,cal")
