"""What transformers over packed rows share: tiles, the places of weights, and how ranks share them."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

from torch import nn

from diffuserve.domain.models.cost import Workload
from diffuserve.models.layers.joint.modulation import OfSequences
from diffuserve.models.layers.linear import Tiling, set_tiling
from diffuserve.models.layers.tensor_parallel import Sharding, TensorShard, shard_layers
from diffuserve.models.offload.components import Component
from diffuserve.models.weights.loading import Placement
from diffuserve.parallel.ranks import TensorRanks


@runtime_checkable
class TransformerConfig(Protocol):
    """What is known of a transformer by the numbers of its checkpoint."""

    @property
    def dim(self) -> int:
        """Return the width of a token."""
        ...

    @property
    def token_operations(self) -> int:
        """Return the operations of a step for each token."""
        ...

    @property
    def pair_operations(self) -> int:
        """Return the operations of attention for each pair of tokens."""
        ...

    def step_bytes(self, workload: Workload, item_bytes: int) -> int:
        """Predict the peak memory of a step, in bytes, with numbers of `item_bytes`."""
        ...


class PackedTransformer(nn.Module):
    """A transformer whose layers are named as in its checkpoints.

    `shardings` say by patterns of layers' names how ranks share their weights. `fused` are the layers that
    are one product here and several in checkpoints, side by side: their last name, and the names there.
    """

    shardings: ClassVar[Mapping[str, Sharding]]
    fused: ClassVar[Mapping[str, tuple[str, ...]]]

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.shape = config
        self.ranks: TensorRanks | None = None
        self._shares: dict[str, TensorShard] = {}

    @property
    @abstractmethod
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""

    def share_weights(self, ranks: TensorRanks) -> None:
        """Keep only the weights of this rank; called before any are loaded.

        From then on all ranks run a forward pass together.
        """
        self.ranks, self._shares = ranks, shard_layers(self, self.shardings, ranks)

    def set_tiling(self, tokens: Tiling, sequences: Tiling) -> None:
        """Set the tiles of products over tokens, and of products with one row for each sequence."""
        set_tiling(self, tokens)
        for module in self.modules():
            if isinstance(module, OfSequences):
                set_tiling(module, sequences)

    def placements(self) -> dict[str, Placement]:
        """Return the place of each checkpoint tensor: under its own name, or as a part of a fused layer."""
        places = {}
        for name, _ in self.named_parameters():
            share = self._shares.get(name)
            fused = next((key for key in self.fused if f".{key}." in name), None)
            if fused is None:
                places[name] = Placement(name, share=share)
                continue
            parts = self.fused[fused]
            for index, part in enumerate(parts):
                own = None if share is None else share.part(index, len(parts))
                places[name.replace(fused, part)] = Placement(name, index, len(parts), share=own)
        return places


FUSED_QKV = {"to_qkv": ("to_q", "to_k", "to_v"), "add_qkv_proj": ("add_q_proj", "add_k_proj", "add_v_proj")}
