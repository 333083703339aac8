"""Message sizes on the command line, as OSU users write them."""

from __future__ import annotations

from nearmetal.units import parse_size_bytes


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read `8,64K,1M` as bytes, ascending and each once; raise BadInputError for what is no size."""
    return tuple(sorted({_size(part) for part in text.split(",")}))


def _size(text: str) -> int:
    plain = text.strip().upper().removesuffix("B").removesuffix("I").strip()
    if plain.isdecimal() and len(plain) < 20:
        return int(plain)
    return parse_size_bytes(f"{plain[:-1]} {plain[-1]}iB" if plain[-1:] in {"K", "M", "G"} else text)
