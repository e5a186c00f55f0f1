"""The choice whether a job is decoded where it was denoised: a pure function of seconds and prices.

Handing over frees the seconds that decoding would take on the denoising device. They are worth something
as far as jobs wait for them, and as much as the device costs. Against them stand what decoding costs
elsewhere, and that this job comes later: its latents travel, and wait there.
"""

from dataclasses import dataclass

TRANSFER_BYTES_PER_SECOND = 50e6
"""Bytes a second at which latents are assumed to travel, once up and once down."""
TRANSFER_SECONDS = 0.2
"""Seconds that a transfer of any size is assumed to take: four requests, and the look for new work."""


def transfer_seconds(num_bytes: int) -> float:
    """Return the seconds in which a file travels to the store and from there to another worker."""
    return TRANSFER_SECONDS + 2 * num_bytes / TRANSFER_BYTES_PER_SECOND


@dataclass(frozen=True)
class Decoding:
    """The second phase of a job: seconds of decoding here and on a decode worker, and bytes of latents."""

    here_seconds: float
    there_seconds: float
    latent_bytes: int

    @property
    def transfer_seconds(self) -> float:
        """Seconds in which the latents travel to the store and from there to another worker."""
        return transfer_seconds(self.latent_bytes)


@dataclass(frozen=True)
class Surroundings:
    """The queues around a job that is about to be denoised.

    `waiting_jobs` of `waiting_seconds` device-seconds wait for each worker that denoises, and
    `decode_wait_seconds` pass before a decode worker takes up new latents. `price_ratio` is the price of a
    decode worker's hour in hours of this worker; 0 where prices are unknown, so that time alone decides.
    """

    waiting_jobs: float
    waiting_seconds: float
    decode_wait_seconds: float
    price_ratio: float = 0.0


def hands_over(decoding: Decoding, around: Surroundings) -> bool:
    """Return whether the job is to be decoded elsewhere.

    The seconds freed here, as far as waiting work can use them, must be worth more than those spent there;
    and the waiting jobs must gain more time by them, all together, than this job loses.
    """
    freed_seconds = min(decoding.here_seconds, around.waiting_seconds)
    is_cheaper = freed_seconds > decoding.there_seconds * around.price_ratio
    slower_seconds = max(decoding.there_seconds - decoding.here_seconds, 0.0)
    delay_seconds = decoding.transfer_seconds + around.decode_wait_seconds + slower_seconds
    return is_cheaper and freed_seconds * around.waiting_jobs > delay_seconds
