"""Settings of the H.264 encoder with which equal frames are equal bytes, on every run and every machine.

x264's code for AVX-512 weighs blocks by memory that nothing has written, so that files differ in a few bytes
from run to run. Its other code, whatever the instructions, writes what its plain C writes.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

THREADS = 2
"""A fixed number: with another one x264 writes other bytes."""
_CPU_INFO = Path("/proc/cpuinfo")
_AVX512 = "avx512f"
_WITHOUT_AVX512 = "MMX2,SSE2Fast,SSSE3,SSE4.2,AVX,FMA3,BMI1,BMI2,AVX2"
"""All that x264 uses of a processor that has AVX-512, in x264's names, but AVX-512 itself."""


def codec_options(cpu_flags: frozenset[str]) -> Mapping[str, str]:
    """Return the encoder's options for a processor with these instructions."""
    return {"x264-params": f"asm={_WITHOUT_AVX512}"} if _AVX512 in cpu_flags else {}


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the instructions of this machine's processor, in Linux's names; none where it tells none."""
    try:
        lines = _CPU_INFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
