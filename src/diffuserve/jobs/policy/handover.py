"""The choice whether a job is decoded where it was denoised: a pure function of seconds and prices.

Handing over frees the seconds that decoding would take on the denoising device. They are worth the price of
that device, as far as jobs wait for it. Against this stand the cost of decoding elsewhere and the delay of
this job, whose latents are transferred and then wait there.
"""

from dataclasses import dataclass

TRANSFER_BYTES_PER_SECOND = 50e6
"""Bytes a second at which latents are assumed to travel, once up and once down."""
TRANSFER_SECONDS = 0.2
"""Seconds that a transfer of any size is assumed to take: four requests, and the look for new work."""


def transfer_seconds(num_bytes: int) -> float:
    """Return the seconds to transfer a file to the store and from there to another worker."""
    return TRANSFER_SECONDS + 2 * num_bytes / TRANSFER_BYTES_PER_SECOND


@dataclass(frozen=True)
class Decoding:
    """The second phase of a job: seconds of decoding here and on a decode worker, and bytes of latents."""

    here_seconds: float
    there_seconds: float
    latent_bytes: int

    @property
    def transfer_seconds(self) -> float:
        """Seconds to transfer the latents to the store and from there to another worker."""
        return transfer_seconds(self.latent_bytes)


@dataclass(frozen=True)
class QueueLoads:
    """The queues around a job that is about to be denoised.

    `waiting_jobs` jobs of `waiting_seconds` device-seconds wait for each denoising worker, and new latents
    wait `decode_wait_seconds` for a decode worker. `price_ratio` is a decode worker's price per hour divided
    by this worker's; 0 if prices are unknown, so that only time decides.
    """

    waiting_jobs: float
    waiting_seconds: float
    decode_wait_seconds: float
    price_ratio: float = 0.0


def hands_over(decoding: Decoding, around: QueueLoads) -> bool:
    """Return whether the job should be decoded elsewhere.

    The seconds freed here, as far as waiting work can use them, must be worth more than those spent there.
    The waiting jobs together must also gain more time than this job loses.
    """
    freed_seconds = min(decoding.here_seconds, around.waiting_seconds)
    is_cheaper = freed_seconds > decoding.there_seconds * around.price_ratio
    slower_seconds = max(decoding.there_seconds - decoding.here_seconds, 0.0)
    delay_seconds = decoding.transfer_seconds + around.decode_wait_seconds + slower_seconds
    return is_cheaper and freed_seconds * around.waiting_jobs > delay_seconds
