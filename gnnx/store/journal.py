"""Stages of a dataset that are whole on disk before the dataset is: what a later run goes on from.

The journal lies in the folder in which a dataset is being written. It names what the dataset is
made from, and for each stage that has ended its arrays, whose bytes were synced before, and its
outcome.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from gnnx.store.manifest import HEADER_BYTES, JOURNAL, ArrayEntry, NodeType

if TYPE_CHECKING:
    from pathlib import Path

    from gnnx.graph import EdgeType


@dataclasses.dataclass
class Stage:
    """What a stage has made."""

    outcome: Any = None
    """Of plain Python values: what its caller wants to know of it."""
    nodes: dict[str, NodeType] = dataclasses.field(default_factory=dict)
    edges: dict[EdgeType, int] = dataclasses.field(default_factory=dict)
    report: dict[str, int] = dataclasses.field(default_factory=dict)
    arrays: dict[str, ArrayEntry] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Journal:
    """What a folder that is being written holds already."""

    origin: str | None
    """Stands for all that the dataset depends on; None for what is never gone on with."""
    stages: dict[str, Stage] = dataclasses.field(default_factory=dict)

    @classmethod
    def found(cls, folder: Path, origin: str | None) -> Journal:
        """Take what an interrupted run of the same origin left, and remove all else.

        Parameters
        ----------
        folder
            In which the dataset is being written; it exists.
        origin
            Of the dataset that is wanted.

        Returns
        -------
        Journal
            Without stages where there is nothing to go on from.
        """
        journal = cls(origin)
        if origin is not None:
            try:
                journal = cls._loaded((folder / JOURNAL).read_text(encoding="utf-8"))
            except (OSError, ValueError, TypeError, KeyError, SyntaxError):
                journal = cls(origin)  # there is none, or it is damaged
            if journal.origin != origin or not journal._is_whole(folder):
                journal = cls(origin)
        kept = {folder / JOURNAL} if journal.stages else set()
        for name in journal.arrays():
            kept |= {folder / f"{name}{suffix}" for suffix in (".npy", ".crc")}
        for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before it
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path not in kept:
                path.unlink()
        return journal

    def arrays(self) -> dict[str, ArrayEntry]:
        """Arrays of all stages."""
        return {name: e for stage in self.stages.values() for name, e in stage.arrays.items()}

    def _is_whole(self, folder: Path) -> bool:
        def size(path: Path) -> int:
            return path.stat().st_size if path.is_file() else -1

        return all(
            size(folder / f"{name}.npy") == HEADER_BYTES + entry.num_bytes
            and size(folder / f"{name}.crc") == 4 * entry.num_pages
            for name, entry in self.arrays().items()
        )

    def dump(self) -> str:
        """Text of the file."""
        stages = {}
        for name, stage in self.stages.items():
            stages[name] = {
                # a literal of Python: JSON would make text of keys that are numbers
                "outcome": repr(stage.outcome),
                "nodes": {name: dataclasses.astuple(kind) for name, kind in stage.nodes.items()},
                "edges": list(stage.edges.items()),
                "report": stage.report,
                "arrays": {name: dataclasses.astuple(e) for name, e in stage.arrays.items()},
            }
        return json.dumps({"origin": self.origin, "stages": stages})

    @classmethod
    def _loaded(cls, text: str) -> Journal:
        document = json.loads(text)
        stages = {}
        for name, stage in document["stages"].items():
            stages[name] = Stage(
                outcome=ast.literal_eval(stage["outcome"]),
                nodes={name: NodeType(*kind) for name, kind in stage["nodes"].items()},
                edges={(src, rel, dst): count for (src, rel, dst), count in stage["edges"]},
                report=stage["report"],
                arrays={
                    name: ArrayEntry(tuple(shape), dtype, crc32)
                    for name, (shape, dtype, crc32) in stage["arrays"].items()
                },
            )
        return cls(document["origin"], stages)
