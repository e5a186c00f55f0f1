"""What ranks exchange in a step of Wan is what its layers need, and no more."""

import pytest

from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.families.wan.packing import ClipShape
from diffuserve.parallel.plan import ParallelPlan
from support.rank_step import RankStep, count_rank
from support.wan_step import wan_step

CONFIG = WanTransformerConfig(num_attention_heads=8, attention_head_dim=128, ffn_dim=4096, num_layers=2)
CLIP = ClipShape(3, 16, 16, text=100, padding=412)
LARGE = CLIP.tokens * CONFIG.dim * 2  # bytes of a clip's tokens in bf16
OUTPUTS = CLIP.tokens * CONFIG.num_outputs * CONFIG.patch_cells * 2


def count(plan: str) -> RankStep:
    return count_rank(wan_step([CLIP, CLIP], CONFIG), ParallelPlan.parse(plan))


@pytest.fixture(scope="module")
def alone() -> RankStep:
    return count("sequence=1")


def calls(step: RankStep) -> dict[str, int]:
    return {name: exchange.calls for name, exchange in step.exchanges.items()}


def test_a_rank_alone_exchanges_nothing(alone: RankStep) -> None:
    assert alone.exchanges == {}


def test_two_groups_exchange_the_velocities_alone_and_do_half_of_the_work(alone: RankStep) -> None:
    step = count("cfg=2")
    assert calls(step) == {"allgather_": 1}
    assert step.exchanges["allgather_"].sent == OUTPUTS
    assert step.weight_bytes == alone.weight_bytes
    assert step.flops == pytest.approx(alone.flops / 2, rel=1e-3)
    assert step.peak_bytes < 0.51 * alone.peak_bytes


def test_ranks_that_share_weights_add_up_three_times_a_block_and_thrice_for_norms(alone: RankStep) -> None:
    """Squares of queries and keys, of the prompt's too, are a number for each token."""
    step = count("tensor=2")
    assert calls(step) == {"allreduce_": 6 * CONFIG.num_layers, "allgather_": 1}
    large = 3 * CONFIG.num_layers * 2 * LARGE  # both passes, of which a rank sends 2·(n - 1)/n
    assert large < step.exchanges["allreduce_"].sent < 1.005 * large
    assert step.weight_bytes < 0.6 * alone.weight_bytes
    assert step.flops == pytest.approx(alone.flops / 2, rel=0.03)


def test_ranks_that_share_tokens_exchange_them_twice_a_block() -> None:
    """Queries, keys and values, then what attention made of them: a half of a half of the tokens each."""
    step = count("sequence=2")
    assert calls(step) == {"alltoall_base_": 2 * CONFIG.num_layers, "allgather_": 1}
    assert step.exchanges["alltoall_base_"].sent == CONFIG.num_layers * 4 * 2 * LARGE // 4


def test_all_ways_of_sharing_together_divide_the_work(alone: RankStep) -> None:
    step = count("cfg=2,tensor=2,sequence=2")
    assert calls(step) == {
        "alltoall_base_": 2 * CONFIG.num_layers,
        "allreduce_": 6 * CONFIG.num_layers,
        "allgather_": 3,
    }
    assert step.flops < 1.1 * alone.flops / 8  # each has the keys of whole prompts, and the embedders
    assert step.peak_bytes < 0.3 * alone.peak_bytes
