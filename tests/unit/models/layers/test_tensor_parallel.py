"""Parts of layers that ranks share make the whole; each rank reads its own part of a file alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.layers.linear import Linear, Tiling, set_tiling
from diffuserve.models.layers.tensor_parallel import RowLinear, Sharding, TensorShard, shard_layers
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights
from diffuserve.parallel.ranks import TensorRanks
from support.pretend_cuda import PretendTensor, pretend_cuda

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
IN, OUT, ROWS = 24, 36, 7


class LoneRank(TensorRanks):
    """A rank that adds nothing of the others, whose parts the test adds up itself."""

    def __init__(self, index: int, size: int) -> None:
        self.index, self.size = index, size

    def add_up(self, part: Tensor) -> Tensor:
        return part


class Layers(nn.Module):
    """A module with one layer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = Linear(IN, 3 * OUT)
        self.widen = Linear(IN, OUT, gelu=True)
        self.narrow = Linear(IN, OUT)
        self.both = Linear(5 * IN, OUT)
        self.plain = nn.Linear(IN, OUT, bias=False)
        self.bare = Linear(IN, OUT, bias=False)
        self.table = nn.Embedding(5, IN)


SHARDINGS = {
    "to_qkv": Sharding(parts=(1, 1, 1)),
    "widen": Sharding(),
    "narrow|plain|bare": Sharding(by_inputs=True),
    "both": Sharding(by_inputs=True, parts=(1, 4)),
    "table": Sharding(),
}


def placements(module: nn.Module, shares: Mapping[str, TensorShard]) -> dict[str, Placement]:
    """Return places of tensors: by their parameters' names, but of queries, keys and values by their own."""
    places = {name: Placement(name, share=shares.get(name)) for name, _ in module.named_parameters()}
    for kind in ("weight", "bias"):
        fused = f"to_qkv.{kind}"
        share = places.pop(fused).share
        for index, name in enumerate("qkv"):
            part = None if share is None else share.part(index, 3)
            places[f"to_{name}.{kind}"] = Placement(fused, index, 3, share=part)
    return places


def write(folder: Path) -> tuple[list[Path], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        module = Layers()
    places = placements(module, {})
    shapes = {name: list(module.get_parameter(each.parameter).shape) for name, each in places.items()}
    tensors = {
        name: torch.randn(shape[0] // places[name].num_parts, *shape[1:], generator=generator)
        for name, shape in shapes.items()
    }
    file = folder / "model.safetensors"
    save_file(tensors, file)
    return [file], tensors


def load(
    files: Sequence[Path],
    rank: LoneRank | None,
    device: torch.device = CPU,
    on_read: Callable[[int], None] | None = None,
) -> Layers:
    shares: dict[str, TensorShard] = {}
    with torch.device("meta"):
        module = Layers()
        if rank is not None:
            shares = shard_layers(module, SHARDINGS, rank)
    load_weights(module, files, placements(module, shares), LoadPlan(device, torch.float32, on_read=on_read))
    return module


@pytest.fixture(params=[1, 2, 3, 4])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Layers, list[Layers]]:
    """Return the layers, and the parts of them that ranks have."""
    files, _ = write(tmp_path)
    return load(files, None), [load(files, LoneRank(rank, request.param)) for rank in range(request.param)]


Parts = tuple[Layers, list[Layers]]


def rows(width: int = IN) -> Tensor:
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(1))


def split(x: Tensor, parts: int) -> tuple[Tensor, ...]:
    return x.chunk(parts, dim=-1)


def check(ours: Tensor, whole: Tensor) -> None:
    torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-5)


def test_outputs_side_by_side_are_the_whole(parts: Parts) -> None:
    """Each rank has some of them, its activation and its bias included."""
    whole, shared = parts
    check(torch.cat([each.widen(rows()) for each in shared], dim=-1), whole.widen(rows()))


def test_each_rank_has_some_heads_of_queries_keys_and_values(parts: Parts) -> None:
    whole, shared = parts
    ours = torch.cat([each.to_qkv(rows()).unflatten(-1, (3, -1)) for each in shared], dim=-1)
    check(ours, whole.to_qkv(rows()).unflatten(-1, (3, -1)))


@pytest.mark.parametrize("name", ["narrow", "plain", "bare"])
def test_products_of_some_inputs_add_up_to_the_whole(parts: Parts, name: str) -> None:
    """A bias counts once."""
    whole, shared = parts
    products = zip(shared, split(rows(), len(shared)), strict=True)
    ours = sum(getattr(each, name)(part) for each, part in products)
    check(cast(Tensor, ours), getattr(whole, name)(rows()))


def test_products_in_tiles_add_up_too(parts: Parts) -> None:
    whole, shared = parts
    expected = whole.narrow(rows())
    for each in shared:
        set_tiling(each, Tiling(4, 2))
    products = zip(shared, split(rows(), len(shared)), strict=True)
    check(cast(Tensor, sum(each.narrow(part) for each, part in products)), expected)


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_inputs_in_two_tensors_are_cut_each(parts: Parts, device: torch.device) -> None:
    """The wide one has four times the features of the other; CUDA has a product for each."""
    whole, shared = parts
    first, second = rows(), rows(4 * IN)
    expected = whole.both.of_parts(first, second)
    pairs = zip(shared, split(first, len(shared)), split(second, len(shared)), strict=True)
    with pretend_cuda():
        ours = [_on_cpu(each.both.to(device).of_parts(a.to(device), b.to(device))) for each, a, b in pairs]
    check(torch.stack(ours).sum(0), expected)


def test_each_rank_has_some_columns_of_a_table(parts: Parts) -> None:
    whole, shared = parts
    places = torch.tensor([3, 0, 4])
    check(torch.cat([each.table(places) for each in shared], dim=-1), whole.table(places))


def test_leading_dimensions_stay(parts: Parts) -> None:
    whole, shared = parts
    x = rows().unflatten(0, (1, ROWS))
    products = zip(shared, split(x, len(shared)), strict=True)
    check(cast(Tensor, sum(each.plain(part) for each, part in products)), whole.plain(x))


def test_each_rank_holds_and_reads_its_part_alone(parts: Parts, tmp_path: Path) -> None:
    whole, shared = parts
    files, tensors = write(tmp_path)
    biases = (tensor for name, tensor in whole.named_parameters() if name in ("narrow.bias", "both.bias"))
    replicated = sum(map(_num_bytes, biases))
    own = (sum(map(_num_bytes, tensors.values())) - replicated) // len(shared) + replicated
    for rank, each in enumerate(shared):
        assert sum(map(_num_bytes, each.parameters())) == own
        sizes: list[int] = []
        load(files, LoneRank(rank, len(shared)), on_read=sizes.append)
        assert sum(sizes) == own


def test_parts_are_read_to_cuda_in_the_same_places(tmp_path: Path) -> None:
    """Rows of a file go straight to the device; parts of rows by way of the host."""
    files, _ = write(tmp_path)
    for rank in (LoneRank(0, 3), LoneRank(2, 3)):
        sizes: list[int] = []
        with pretend_cuda():
            on_device = load(files, rank, CUDA, sizes.append)
        ours = {name: _on_cpu(each.data) for name, each in on_device.named_parameters()}
        expected = dict(load(files, rank).named_parameters())
        assert ours.keys() == expected.keys()
        assert all(torch.equal(ours[name], expected[name]) for name in expected)
        assert sum(sizes) == sum(map(_num_bytes, expected.values()))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("to_k.weight", (OUT // 2, IN), rf"\({OUT // 2}, {IN}\), expected \({OUT}, {IN}\)"),
        ("narrow.weight", (OUT, IN // 2), rf"\({OUT}, {IN // 2}\), expected \({OUT}, {IN}\)"),
        ("widen.bias", (OUT // 2,), rf"\({OUT // 2},\), expected \({OUT},\)"),
    ],
)
@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_a_tensor_of_the_size_of_a_part_is_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], expected: str, device: torch.device
) -> None:
    """The shapes of files are those of the whole."""
    files, tensors = write(tmp_path)
    save_file(tensors | {name: torch.zeros(shape)}, files[0])
    with pretend_cuda(), pytest.raises(InvalidModel, match=rf"{name} has shape {expected}"):
        load(files, LoneRank(1, 2), device)


def test_a_tensor_that_holds_no_numbers_of_ours_is_refused(tmp_path: Path) -> None:
    files, tensors = write(tmp_path)
    save_file(tensors | {"widen.weight": torch.ones(OUT, IN, dtype=torch.int32)}, files[0])
    with pytest.raises(InvalidModel, match=r"widen\.weight holds torch\.int32"):
        load(files, LoneRank(1, 2))


@pytest.mark.parametrize(("width", "parts"), [(6, (1,)), (12, (1, 1)), (10, (1, 2))])
def test_features_that_cannot_be_cut_evenly_are_refused(width: int, parts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"{width} features"):
        Sharding(parts=parts).ranges(width, 0, 4)


def test_only_layers_cut_by_their_inputs_exchange() -> None:
    with torch.device("meta"):
        module = Layers()
        shard_layers(module, SHARDINGS, LoneRank(0, 2))
    exchanging = {name for name, layer in module.named_modules() if isinstance(layer, RowLinear)}
    assert exchanging == {"narrow", "both", "plain", "bare"}


def _num_bytes(tensor: Tensor) -> int:
    return tensor.nbytes


def _on_cpu(tensor: Any) -> Tensor:
    found: Tensor = tensor.cpu_tensor if isinstance(tensor, PretendTensor) else tensor
    return found
