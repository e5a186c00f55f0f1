"""Ranks exchange and agree, in forked processes over Gloo."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from diffuserve.parallel.ranks import GroupBroken, OtherRankFailed, Ranks
from diffuserve.parallel.seal import Seal
from support.forked_ranks import Program, run_on_ranks

Run = Callable[[Program], list[Any]]


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow), 3])
def num_ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def run(num_ranks: int, tmp_path: Path) -> Run:
    """Runs a program on every rank, and returns their results in the order of ranks."""
    return lambda program: run_on_ranks(program, num_ranks, tmp_path / "store")


def test_the_first_rank_leads(run: Run, num_ranks: int) -> None:
    results = run(lambda ranks: (ranks.index, ranks.size, ranks.is_lead))
    assert results == [(rank, num_ranks, rank == 0) for rank in range(num_ranks)]


def test_messages_of_the_first_rank_reach_all(run: Run, num_ranks: int) -> None:
    def program(ranks: Ranks) -> Any:
        return ranks.commands.broadcast({"steps": ["a"]} if ranks.is_lead else None)

    assert run(program) == [{"steps": ["a"]}] * num_ranks


def test_messages_of_all_ranks_are_gathered_in_order(run: Run, num_ranks: int) -> None:
    gathered = [f"rank {rank}" for rank in range(num_ranks)]
    assert run(lambda ranks: ranks.commands.gather(f"rank {ranks.index}")) == [gathered] * num_ranks


def test_messages_are_sent_to_one_rank(run: Run, num_ranks: int) -> None:
    def program(ranks: Ranks) -> Any:
        if not ranks.is_lead:
            ranks.images.send(ranks.index * 10, 0)
            return None
        return [ranks.images.receive(rank) for rank in range(1, ranks.size)]

    assert run(program)[0] == [rank * 10 for rank in range(1, num_ranks)]


def test_a_value_is_true_only_if_it_is_on_every_rank(run: Run, num_ranks: int) -> None:
    def program(ranks: Ranks) -> Any:
        return ranks.commands.all_true(True), ranks.commands.all_true(ranks.index != ranks.size - 1)

    assert run(program) == [(True, False)] * num_ranks


def test_ranks_agree_on_success(run: Run, num_ranks: int) -> None:
    assert run(lambda ranks: ranks.agree()) == [None] * num_ranks


def test_a_failure_is_raised_on_the_ranks_that_succeeded(run: Run, num_ranks: int) -> None:
    """The rank that failed raises its own error; the others learn which rank failed, and how."""

    def program(ranks: Ranks) -> str:
        error = ValueError("odd") if ranks.index == ranks.size - 1 else None
        try:
            ranks.agree(error)
        except OtherRankFailed as failure:
            return str(failure)
        return "own failure"

    last = num_ranks - 1
    assert run(program) == [f"rank {last}: ValueError: odd"] * last + ["own failure"]


def test_ranks_that_agree_enter_collectives_and_go_on(run: Run, num_ranks: int) -> None:
    def program(ranks: Ranks) -> float:
        with ranks.together():
            total = torch.tensor([1.0])
            dist.all_reduce(total)
        return total.item()

    assert run(program) == [float(num_ranks)] * num_ranks


def test_an_error_among_collectives_breaks_the_group(run: Run, num_ranks: int) -> None:
    def program(ranks: Ranks) -> str:
        try:
            with ranks.together():
                raise RuntimeError("out of memory")
        except GroupBroken as broken:
            return str(broken)

    expected = [f"rank {rank} failed among collectives: out of memory" for rank in range(num_ranks)]
    assert run(program) == expected


def test_heads_are_scattered_and_gathered_back(run: Run, num_ranks: int) -> None:
    """A rank holds, for attention, all tokens with its share of the heads (DeepSpeed-Ulysses)."""
    local, heads, dim = 2, 6, 4
    whole = torch.randn(local * num_ranks, 3, heads, dim, generator=torch.Generator().manual_seed(0))

    def program(ranks: Ranks) -> tuple[bool, bool]:
        own = whole[ranks.index * local :][:local]
        scattered = ranks.sequence.scatter_heads(own)
        share = heads // ranks.size
        expected = whole[:, :, ranks.index * share :][:, :, :share]
        returned = ranks.sequence.gather_heads(scattered[:, 0])
        return torch.equal(scattered, expected), torch.equal(returned, own[:, 0])

    assert run(program) == [(True, True)] * num_ranks


def test_parts_are_gathered_in_the_order_of_ranks(run: Run, num_ranks: int) -> None:
    whole = torch.arange(2.0 * num_ranks).view(2 * num_ranks, 1)

    def program(ranks: Ranks) -> bool:
        return torch.equal(ranks.sequence.gather(whole[2 * ranks.index :][:2]), whole)

    assert run(program) == [True] * num_ranks


def test_a_rank_that_has_gone_breaks_the_group_and_fails_no_request(run: Run, num_ranks: int) -> None:
    """The error is no `Exception`, which would count as the failure of the requests in the step."""

    def program(ranks: Ranks) -> str:
        if ranks.index == ranks.size - 1:
            dist.destroy_process_group()
            return "gone"
        try:
            ranks.agree()
        except GroupBroken:
            return "broken"
        return "agreed"

    assert run(program) == ["broken"] * (num_ranks - 1) + ["gone"]


@pytest.mark.parametrize("call", ["broadcast", "all_true"])
def test_what_a_stranger_says_is_not_acted_upon(call: str, run: Run, num_ranks: int) -> None:
    """Rank 0 is one here that has got into the connections of another group, and knows no secret."""

    def program(ranks: Ranks) -> str:
        if ranks.is_lead:
            ranks.commands._seal = Seal(b"a guess", b"channel", b"commands")
        words = broken_by(lambda: getattr(ranks.commands, call)(True))
        if not ranks.is_lead:
            dist.destroy_process_group()  # as its process ends, for which the stranger waits otherwise
        return words

    assert all("does not come from this group" in words for words in run(program)[1:])


def test_ranks_that_do_not_share_a_secret_exchange_nothing(run: Run, num_ranks: int) -> None:
    told = run(lambda ranks: broken_by(lambda: Ranks(ranks.plan, bytes([ranks.index]))))
    assert all(
        "does not come from this group" in words for words in told[: num_ranks if num_ranks > 1 else 0]
    )


def broken_by(call: Callable[[], object]) -> str:
    try:
        call()
    except GroupBroken as broken:
        return str(broken)
    return "nothing"
