"""Samplers take options of requests, which no config gives."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import with_config

from diffuserve.domain.models.config import SCHEMA
from diffuserve.samplers.euler import Euler


@with_config(SCHEMA)
@dataclass(frozen=True)
class Stirred(Euler):
    """A sampler with an option."""

    stirring: float = 0.0
    request_options: ClassVar[tuple[str, ...]] = ("stirring",)


def test_a_sampler_has_the_options_of_a_request_that_it_knows() -> None:
    options = (("stirring", 0.5), ("eta", 1.0))
    assert Stirred().with_options(options) == Stirred(stirring=0.5)
    assert Euler().with_options(options) == Euler()


def test_a_config_gives_no_option_of_requests() -> None:
    assert Stirred.from_config({"stirring": 0.5}) == Stirred()
