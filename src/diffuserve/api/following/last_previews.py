"""The last preview of jobs whose requests wait here."""

from collections.abc import Iterator
from contextlib import contextmanager


class LastPreviews:
    """Keeps a preview of each job while its request waits; who asks must have found the job by its tenant."""

    def __init__(self) -> None:
        self._previews: dict[str, str | None] = {}

    @contextmanager
    def kept(self, job_id: str) -> Iterator[None]:
        """Keep the job's previews within the block."""
        self._previews[job_id] = None
        try:
            yield
        finally:
            del self._previews[job_id]

    def keep(self, job_id: str, preview: str) -> None:
        """Keep a preview, a PNG in base64, in place of the job's last one."""
        if job_id in self._previews:
            self._previews[job_id] = preview

    def of(self, job_id: str) -> str | None:
        """Return the job's last preview, if there is one."""
        return self._previews.get(job_id)
