"""The budgets of the next step: tokens that are worth it, and memory that is left."""

from diffuserve.domain.models.cost import CostFit
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.costs.cost_model import CostModel
from diffuserve.engine.decoding.decoder import Decoder
from diffuserve.engine.policy.scheduler import StepLimits
from diffuserve.engine.policy.sharing import StepCost
from diffuserve.engine.policy.step_order import StepOrder
from diffuserve.engine.stages import Stage, StageExecutor
from diffuserve.engine.steps.adaptive_steps import AdaptiveSteps
from diffuserve.engine.steps.prompt_encoder import PromptEncoder

_MAX_AHEAD = 1 / 8  # of the memory, for requests that run by themselves and wait
_MIN_KNEE_TOKENS, _MAX_KNEE_TOKENS = 1_024, 65_536


class Budgets:
    """Says what a step may take.

    `memory_bytes` are shared with what is decoded, with kept prompts, and with what runs hold.
    """

    def __init__(  # noqa: PLR0913 (the parts of an engine that take memory or tokens)
        self,
        config: EngineConfig,
        memory_bytes: int,
        cost_model: CostModel,
        stages: StageExecutor,
        prompts: PromptEncoder,
        decoder: Decoder,
        adaptive: AdaptiveSteps,
    ) -> None:
        self._config, self.memory_bytes = config, memory_bytes
        self._cost_model, self._stages, self._prompts, self._decoder = cost_model, stages, prompts, decoder
        self._adaptive = adaptive

    @property
    def tokens(self) -> int:
        """Tokens that may ordinarily share a step: as configured, else the fit's knee for every core slot."""
        if self._config.token_budget is not None:
            return self._config.token_budget
        knee = min(max(self._cost_model.knee_tokens(), _MIN_KNEE_TOKENS), _MAX_KNEE_TOKENS)
        return knee * self._stages.num_core_slots(Stage.DENOISE)

    def limits(self) -> StepLimits:
        """Return the budgets of this moment."""
        held = self._prompts.parked_bytes
        room = self.memory_bytes - self._decoder.held_bytes - self._prompts.held_bytes - held
        encodes_ahead = held <= self.memory_bytes * _MAX_AHEAD
        tokens = self._adaptive.limited(self.tokens)
        cost = self.step_cost if self._shares_what_is_worthwhile else None
        return StepLimits(tokens, room, self._config.max_batch_size, encodes_ahead, cost)

    @property
    def fit(self) -> CostFit:
        """Return what predicts seconds at this moment."""
        return self._cost_model.fit

    @property
    def step_cost(self) -> StepCost:
        """Return what a step of this moment costs, on the core slots that it may take."""
        return StepCost(self.fit.step[0], self._stages.num_core_slots(Stage.DENOISE))

    @property
    def _shares_what_is_worthwhile(self) -> bool:
        """False before it is known, and where the operator says what shares a step.

        That is so many tokens, equal steps, or all that are waited for.
        """
        config = self._config
        says_so = config.token_budget is not None or config.same_steps_only or config.max_wait_seconds > 0
        return config.step_order == StepOrder.SHORTEST and not says_so and self._cost_model.knows_steps
