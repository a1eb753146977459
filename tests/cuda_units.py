"""Which types the tests compile each source of `cuda/` for."""

import itertools
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "cuda"
_TYPES = [  # every type, every vector width, both widths of indices; not all of their products
    ("float", "int", 1),
    ("float", "Int64", 2),
    ("float", "int", 4),
    ("double", "Int64", 1),
    ("double", "int", 2),
    ("Half", "int", 1),
    ("Half", "Int64", 4),
    ("Half", "int", 8),
    ("Bfloat16", "int", 2),
    ("Bfloat16", "Int64", 8),
]


def instances(source):
    """Sets of macros to compile a source with, by the macros that it names."""
    text = (SOURCES / f"{source}.cu").read_text()
    if "PACKET" in text:
        return [(f"PACKET={size}",) for size in (1, 2, 4, 8, 16)]
    rows = [dict(zip(("VALUE", "INDEX", "VECTOR"), types, strict=True)) for types in _TYPES]
    named = [
        tuple(f"{name}={value}" for name, value in row.items() if name in text) for row in rows
    ]
    if "#ifdef TIERED" in text:
        named += [(*defines, "TIERED") for defines in named]
    return list(dict.fromkeys(named))


def units():
    """Every source with each set of its macros."""
    from gnnx.ops._cuda import Unit  # only here: the build check goes without torch

    sources = sorted(path.stem for path in SOURCES.glob("*.cu"))
    return list(
        itertools.chain.from_iterable(
            [Unit(source, defines) for defines in instances(source)] for source in sources
        )
    )
