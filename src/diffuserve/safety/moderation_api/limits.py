"""Limits of the moderation API, apart from the API so that the command line loads no web framework."""

from dataclasses import dataclass

_BYTES_PER_CHARACTER = 12  # in JSON, which may write a character as two escapes of six bytes
_OVERHEAD_BYTES = 4_096


@dataclass(frozen=True)
class ModerationLimits:
    """Limits of a request's texts and characters, and of the number of concurrent requests."""

    max_inputs: int = 32
    max_characters: int = 16_000
    max_waiting: int = 64

    @property
    def max_body_bytes(self) -> int:
        """Largest request body, in bytes."""
        return self.max_characters * _BYTES_PER_CHARACTER + _OVERHEAD_BYTES
