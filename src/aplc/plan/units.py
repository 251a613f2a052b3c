"""Bytes and seconds as people read them."""


def in_bytes(n_bytes: float) -> str:
    """In decimal units, as disks and memory are sold."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:,.1f} {unit}"
    return f"{n_bytes / 1e3:,.1f} kB"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {seconds} s"
