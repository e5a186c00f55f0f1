"""Outcomes of attempts that are not a status of their job."""

from typing import Final

from diffuserve.domain.jobs.job import JobStatus

DENOISED: Final = "denoised"
"""Ended with finished latents, which another attempt decodes."""
PREEMPTED: Final = "preempted"
"""Made room for a more urgent job."""
LOST: Final = "lost"
"""Lost its worker, with the device-seconds that nobody knows."""
USEFUL_OUTCOMES: Final = (JobStatus.SUCCEEDED.value, DENOISED)
"""Outcomes of attempts whose device-seconds went into a result."""
