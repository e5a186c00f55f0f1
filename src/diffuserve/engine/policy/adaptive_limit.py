"""How much may share a step while an objective is kept: a pure controller (INV-5).

It only lowers what the engine's ordinary budget of tokens allows, and takes that back. With fewer tokens a
step is shorter, and requests end one after the other instead of all together, late; in return the constant
part of a step is paid more often. Beside additive increase and multiplicative decrease (Chiu and Jain, 1989)
it has three rules, so that it does no harm. It cuts only where requests are alike: in a queue of one server
taking turns is better than one after the other if the squared coefficient of variation of their work is above
1 (Kleinrock, Queueing Systems II, 1976). It cuts no deeper than the device's idle time pays for. And a cut
that did not help is taken back. After each cut it changes nothing for a while, and for twice as long after
the next, until requests have been in time for long at the ordinary budget.
"""

from dataclasses import dataclass, replace

_CUT, _RAISE = 0.7, 0.2
_LEAST_SHARE = 0.1
_WORTH_TRYING = 0.9
_MOST_BUSY = 0.85
"""Of the time: what a cut may make of the device's load."""
_FREE_COST = 1.02
"""Seconds of a token, in those of a full step's, that a cut may cost a device without idle time."""
_HELPED = 0.03
_MOST_VARIATION = 0.8
_FIRST_PAUSE, _LONGEST_PAUSE = 4, 64


@dataclass(frozen=True, kw_only=True)
class SeenWindow:
    """What happened since the limit was last looked at; shares are in 0…1.

    `good_share` of the requests that ended, or are overdue, were in time; steps ran in `busy_share` of the
    time, and had `used_share` of the ordinary tokens on average. `constant_share` is the part of a full step
    of the ordinary budget that does not depend on its tokens, and `variation` the squared coefficient of
    variation of the work in requests.
    """

    good_share: float
    busy_share: float
    used_share: float
    constant_share: float
    variation: float


@dataclass(frozen=True)
class AdaptiveLimit:
    """The `share` of the ordinary tokens that a step may have, and what the controller remembers.

    `before` is the good share at the last cut, while its effect is not known; for `pause` windows nothing is
    tried, and for `next_pause` after the next cut.
    """

    share: float = 1.0
    before: float | None = None
    pause: int = 0
    next_pause: int = _FIRST_PAUSE

    def after(self, seen: SeenWindow, wanted: float) -> "AdaptiveLimit":
        """Return the limit of the next window; `wanted` is the share of requests that are to be in time."""
        if self.before is not None:
            return self._judged(seen, self.before)
        is_kept, is_well_kept = seen.good_share >= wanted, seen.good_share >= (1 + wanted) / 2
        if not is_kept and self.share < self._floor(seen):
            return self._raised()  # the device can no longer pay for the cut
        if self.pause:
            return replace(self, pause=self.pause - 1)
        if not is_kept:
            return self._cut(seen)
        if is_well_kept and self.share < 1:
            return self._raised()
        is_calm = is_well_kept and self.share == 1
        return replace(self, next_pause=max(_FIRST_PAUSE, self.next_pause - 1)) if is_calm else self

    def _judged(self, seen: SeenWindow, before: float) -> "AdaptiveLimit":
        """Keep a cut that helped, take back one that did not; leave it so for a while."""
        has_helped = seen.good_share >= before + _HELPED
        return AdaptiveLimit(
            share=self.share if has_helped else 1.0,
            pause=self.next_pause,
            next_pause=min(2 * self.next_pause, _LONGEST_PAUSE),
        )

    def _cut(self, seen: SeenWindow) -> "AdaptiveLimit":
        lower = max(_CUT * min(self.share, seen.used_share), self._floor(seen))
        if lower > _WORTH_TRYING * self.share:
            return self
        return replace(self, share=lower, before=seen.good_share)

    def _raised(self) -> "AdaptiveLimit":
        return replace(self, share=min(1.0, self.share + _RAISE))

    def _floor(self, seen: SeenWindow) -> float:
        """Return the least share at which the device does all its work; 1 where less cannot help."""
        if seen.variation > _MOST_VARIATION:
            return 1.0
        constant = seen.constant_share
        now = _cost(min(self.share, max(seen.used_share, _LEAST_SHARE)), constant)
        most_cost = max(_FREE_COST, now * _MOST_BUSY / max(seen.busy_share, 1e-9))
        return max(_LEAST_SHARE, constant / (most_cost - (1 - constant)))


def _cost(share: float, constant: float) -> float:
    """Return the seconds of a token in steps of that share, in those of a token in ordinary steps."""
    return constant / share + 1 - constant
