"""Clips that ranks share are predicted as by one rank."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.families.wan.packing import ClipShape, pack_layout
from diffuserve.models.families.wan.sharding import shard_layout
from diffuserve.models.families.wan.transformer import WanTransformer
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.sequence_parallel import ulysses
from diffuserve.parallel.ranks import Ranks
from support.forked_ranks import run_on_ranks
from support.wan_clips import CHECKPOINTS, CPU, Clip, distance, make_clip, make_mixed, pack, write_checkpoint


def predict_row(model: WanTransformer, clips: list[Clip], ranks: Ranks | None = None) -> Tensor:
    """Return the predictions of all tokens, on every rank."""
    packed = pack(clips, model.config)
    with torch.inference_mode():
        if ranks is None:
            return model(packed)  # type: ignore[no-any-return]
        shapes = [clip.shape for clip in clips]
        part = shard_layout(shapes, packed.layout, ranks.sequence.index, ranks.sequence.size).of(packed)
        return ranks.sequence.gather(model(part))[: len(packed.tokens)]


@pytest.mark.parametrize(("kind", "num_ranks"), [("t2v", 4), ("i2v", 2)])
def test_several_ranks_predict_what_one_does(kind: str, num_ranks: int, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, CHECKPOINTS[kind])
    model = checkpoint.ours()
    batches = [
        make_mixed(model.config),
        [make_clip(model.config, 1, (1, 2, 6), (0.0, 300.0), 3)],  # three tokens
        make_mixed(model.config)[::-1][:5],
    ]
    alone = [predict_row(model, batch) for batch in batches]
    assert any(len(row) % num_ranks for row in alone)

    def program(ranks: Ranks) -> list[list[float]]:
        torch.manual_seed(ranks.index)
        shared = checkpoint.ours(kernel=ulysses(choose_kernel(CPU, torch.float32), ranks.sequence))
        return [predict_row(shared, batch, ranks).tolist() for batch in batches]

    for rows in run_on_ranks(program, num_ranks, tmp_path / "store"):
        for row, expected in zip(rows, alone, strict=True):
            assert distance(torch.tensor(row), expected) < 1e-5


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 40])
def test_each_token_belongs_to_one_rank_with_its_factors_and_prompt(num_ranks: int) -> None:
    config = WanTransformerConfig(num_attention_heads=2, attention_head_dim=12)
    shapes = [
        ClipShape(3, 2, 2, text=5, padding=3, has_first_frame=True),
        ClipShape(1, 1, 1, text=2, padding=6),
        ClipShape(2, 3, 2, text=8, has_first_frame=True),
    ]
    layout = pack_layout(shapes, config, CPU)
    shards = [shard_layout(shapes, layout, rank, num_ranks) for rank in range(num_ranks)]
    assert torch.cat([shard.tokens for shard in shards])[:25].tolist() == list(range(25))
    owners = torch.arange(3).repeat_interleave(torch.tensor(layout.segments.lengths))
    rows = torch.arange(5).repeat_interleave(torch.tensor(layout.factors.lengths))
    for shard in shards:
        queries = torch.tensor(shard.layout.text.queries.lengths)
        factors = torch.tensor(shard.layout.factors.lengths)
        assert torch.arange(3).repeat_interleave(queries).tolist() == owners[shard.tokens].tolist()
        assert torch.arange(5).repeat_interleave(factors).tolist() == rows[shard.tokens].tolist()
        assert torch.equal(shard.layout.rotation, layout.rotation[shard.tokens])
        assert shard.layout.text.keys.lengths == (8, 8, 8)
        assert shard.layout.segments.lengths == layout.segments.lengths
