"""FlashAttention-4 is used where its package, the GPU and a trial allow it, and nothing else changes."""

import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.attention import _fa4, current_flash_attention_impl, restore_flash_attention_impl

from diffuserve.models.layers import attention
from diffuserve.models.layers.attention import choose_kernel
from support.pretend_cuda import pretend_cuda

CUDA = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    attention._activates_flash_4.cache_clear()
    yield
    attention._activates_flash_4.cache_clear()
    _fa4._fa4_import_module.cache_clear()
    restore_flash_attention_impl()


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with the names that torch looks for; the pretended device attends by itself."""
    interface = ModuleType("flash_attn.cute.interface")
    interface.__dict__.update(_flash_attn_fwd=None, _flash_attn_bwd=None)
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)


def chosen(capability: tuple[int, int] = (9, 0), dtype: torch.dtype = torch.bfloat16) -> str:
    with pretend_cuda(capability=capability):
        return choose_kernel(CUDA, dtype).name


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
def test_it_is_used_where_its_package_is_installed(capability: tuple[int, int]) -> None:
    assert chosen(capability) == "varlen-flash-4"
    assert current_flash_attention_impl() == "FA4"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("capability", [(8, 0), (12, 0)])
def test_it_is_not_used_on_gpus_that_it_does_not_know(capability: tuple[int, int]) -> None:
    assert chosen(capability) == "varlen-flash"
    assert current_flash_attention_impl() is None


@pytest.mark.usefixtures("package")
def test_it_is_not_used_in_a_dtype_that_it_does_not_have() -> None:
    assert chosen(dtype=torch.float32) == "grouped-sdpa"
    assert current_flash_attention_impl() is None


def test_without_its_package_nothing_changes(caplog: pytest.LogCaptureFixture) -> None:
    assert chosen() == "varlen-flash"
    assert current_flash_attention_impl() is None
    assert not caplog.records


@pytest.mark.usefixtures("package")
def test_if_it_fails_its_trial_the_one_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_args: Any) -> Any:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(attention, "varlen_flash", failing)
    with caplog.at_level(logging.WARNING):
        assert chosen() == "varlen-flash"
    assert current_flash_attention_impl() is None
    assert "no kernel image is available" in caplog.text
