"""What an engine chose is values for programs, and words for people."""

from diffuserve.domain.models.description import Description, in_a_line, shown
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.residency import RESIDENT, Residency


def test_numbers_and_truths_are_read_as_words() -> None:
    told: Description = {"dtype": "bf16", "token_budget": 65_536, "exact": False, "host_bytes": 2_500_000_000}
    assert shown(told) == {"dtype": "bf16", "token_budget": "65,536", "exact": "false", "host": "2.50 GB"}
    assert in_a_line({"a": "b", "c": True}) == "a b · c true"


def test_offloaded_weights_are_told_in_bytes() -> None:
    told = Residency(mode=Offload.LAYERS, device_bytes=7, host_bytes=12_000_000).describe()
    assert told == {"offload": "layers", "weights_on_device_bytes": 7, "weights_on_host_bytes": 12_000_000}
    assert shown(told)["weights on host"] == "12.00 MB"
    assert RESIDENT.describe() == {}
