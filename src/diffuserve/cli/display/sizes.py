"""Sizes of files for people."""


def human_bytes(num_bytes: float) -> str:
    """Return a number of bytes in decimal units, as disks and the hub count: `15.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000 or unit == "GB":
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError("unreachable")
