"""The ranks that share the weights of a text encoder, and encode together."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.plan import encoder_sharing
from diffuserve.parallel.ranks import Ranks, TensorRanks


@dataclass(frozen=True)
class EncoderRanks:
    """The ranks that share an encoder's weights with this one, `sharing`; `None` where each has all of them.

    Those are all `ranks` or, of an encoder with too few heads for all, the ones that share the denoiser's.
    """

    ranks: Ranks | None = None
    sharing: TensorRanks | None = None

    @classmethod
    def of(cls, plan: LoadPlan, shared: Mapping[str, int]) -> "EncoderRanks":
        """Return the ranks for an encoder that has so many of each thing that they share.

        Raise `InvalidParams` if neither all ranks nor those of the denoiser's weights can share them evenly.
        """
        ranks = plan.ranks
        if ranks is None or not ranks.plan.is_sharded:
            return cls()
        is_of_all = encoder_sharing(ranks.plan, shared) == ranks.size
        return cls(ranks, ranks.world if is_of_all else ranks.tensor)

    def together(self) -> AbstractContextManager[None]:
        """Enclose the encoder's forward pass, in which ranks that share its weights exchange."""
        return nullcontext() if self.ranks is None else self.ranks.together()
