"""How far a pipeline's denoising loop has come, by its progress bar or its scheduler."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any


class StepsTold:
    """Counts what a pipeline tells: 240 of 254 classes have a progress bar, nearly all step a scheduler.

    `expected` is the number of steps asked for; a pipeline's own may differ.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._bar: _Bar | None = None
        self.num_scheduled = 0
        self.num_passes = 0

    @property
    def has_begun(self) -> bool:
        """True from the moment on at which the loop is known to run."""
        return self._bar is not None or self.num_scheduled > 0

    def has_done(self, index: int, count: int) -> bool:
        """Return whether step `index` of `count`, counted from 0, is over; the last one never is.

        The last step goes on to the end of the loop, whatever follows the last told step.
        """
        return index + 1 < count and self._part_done() >= (index + 1) / count

    def progress_bar(self, iterable: Iterable[Any] | None = None, total: int | None = None) -> "_Bar":
        """Stand for the pipeline's method of the same name."""
        length = len(iterable) if isinstance(iterable, Sized) else None
        self._bar = _Bar(iterable, length if total is None else total)
        return self._bar

    def _part_done(self) -> float:
        if self._bar is not None and self._bar.total:
            return self._bar.done / self._bar.total
        return max(self.num_scheduled, 0 if self.num_scheduled else self.num_passes) / self._expected


class _Bar:
    """Counts in place of tqdm."""

    def __init__(self, iterable: Iterable[Any] | None, total: int | None) -> None:
        self.done, self.total = 0, total
        self._iterable = iterable

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable or ():
            yield item
            self.done += 1

    def update(self, count: int = 1) -> None:
        self.done += count

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_kwargs: None  # set_description, set_postfix …
