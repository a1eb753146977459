"""From a dataset to one whose parts are ranges of ids: assign, measure, relabel.

Letters: N nodes, P parts.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from gnnx import __version__, store
from gnnx.errors import DataError, RunError, UsageError
from gnnx.memory import Tier
from gnnx.partition import _kernels
from gnnx.partition.measure import Quality, measure
from gnnx.partition.multilevel import Abandoned, multilevel_parts, require_kaminpar
from gnnx.partition.problem import WEIGHTS, Problem
from gnnx.partition.relabel import Relabeller
from gnnx.partition.stream import StreamSearch
from gnnx.partition.transpose import write_transpose
from gnnx.random import Key
from gnnx.store.manifest import edges_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gnnx.partition.problem import Weight
    from gnnx.partition.relabel import Order
    from gnnx.threads import Progress

Method: TypeAlias = Literal["quality", "stream", "random"]
"""How nodes are given parts."""

TIME_LIMIT_S = 600.0
_log = logging.getLogger("gnnx")
_CHOICES = {"method": ("quality", "stream", "random"), "order": ("readers", "id")}
_NODE_BYTES = 40  # of all stages together, beside the graph
_BUFFER_BYTES = 4 << 20  # of readers and writers
_MUCH_CUT = 0.8
_PURPOSE = int.from_bytes(b"parts", "big")  # keeps these draws apart from those of a made-up graph


@dataclasses.dataclass(frozen=True)
class PartitionReport:
    """What became of a partition."""

    method: Method
    """What gave the parts: another than was asked for, where that one failed."""
    quality: Quality
    """Counted on the edges."""
    notes: list[str]
    """What a user should know, a line each."""

    def as_dict(self) -> dict[str, Any]:
        """All of it, for a JSON document."""
        return {"method": self.method, "notes": self.notes, **self.quality.as_dict()}


@store.enough_named()
def partition(  # noqa: PLR0913 - each argument is an option of the verb
    dataset: Path | str,
    out: Path | str,
    *,
    num_parts: int = 1,
    method: Method = "quality",
    order: Order = "readers",
    balance: Sequence[Weight] = ("nodes",),
    imbalance: float = 0.03,
    seed: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
    memory: str | int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PartitionReport:
    """Write a dataset again with its nodes part by part; the graph is the same but for the ids.

    Parameters
    ----------
    dataset
        Folder of the dataset.
    out
        Folder to make.
    num_parts
        P, at most N; with 1 the nodes are ordered alone.
    method
        ``"stream"``: placed and moved in passes over the edges. ``"quality"``: also by KaMinPar
        and moves that lower its alpha; the better of the two. ``"random"``.
    order
        Of the nodes of a part.
    balance
        What parts share evenly.
    imbalance
        A part has at most this share more than the mean part.
    seed
        Of what is drawn.
    time_limit_s
        Seconds that KaMinPar may take; then ``"stream"`` gives the parts.
    memory
        Bytes of host memory, such as "512MiB". Default: 80 % of what is free.
    overwrite
        Replace a dataset that is there already.
    progress
        Called with (stage, done, total).

    Returns
    -------
    PartitionReport
        With what the parts cost.

    Raises
    ------
    UsageError
        An option is wrong, or there are more parts than nodes.
    DataError
        The dataset is damaged.
    ResourceError
        Memory or disk space does not suffice, or another process writes `out`.
    """
    _check(method, order, balance, imbalance)
    with store.open(dataset, memory=memory) as opened:
        num_nodes = opened.num_nodes
        if not 1 <= num_parts <= max(1, num_nodes):
            raise UsageError(
                f"{num_parts} parts of {num_nodes} nodes: each part needs a node",
                f"Give --parts from 1 to {max(1, num_nodes)}.",
            )
        notes: list[str] = []
        free = opened.ledger.free_bytes(Tier.HOST)
        if free is not None:
            opened.graph.pin(max(0, free - _NODE_BYTES * num_nodes - _BUFFER_BYTES) // 2)
        problem = Problem(
            opened.graph, num_parts, tuple(balance), imbalance, opened.split("train"), progress
        )
        origin = f"{__version__} {opened.fingerprint} " + " ".join(
            map(str, (num_parts, method, order, *balance, imbalance, seed, time_limit_s))
        )
        with store.DatasetWriter(
            out, overwrite=overwrite, ledger=opened.ledger, origin=origin
        ) as writer:
            arrays = opened.manifest.arrays.values()
            transpose = 8 * (num_nodes + opened.num_edges) if num_parts > 1 else 0
            size = sum(entry.num_bytes for entry in arrays)
            writer.require(size + transpose + 4 * num_nodes)
            part = opened.ledger.empty(num_nodes, np.int32, Tier.HOST, "partition")

            def assign() -> tuple[Method, dict[str, Any], list[str]]:
                _refuse_damage(opened, progress)
                method_used, quality = _assign(
                    problem, part, method, (writer.partial, seed, time_limit_s), notes
                )
                if quality.cut_share > _MUCH_CUT and method_used != "random":
                    _tell(
                        notes,
                        f"{100 * quality.cut_share:.0f} % of the edges join two parts: "
                        "this graph hardly falls into parts",
                    )
                writer.interim("part", (num_nodes,), "int32").append(part)
                return method_used, dataclasses.asdict(quality), notes

            method, counts, notes = writer.stage("parts", assign)
            quality = Quality(**counts)
            writer.read_interim("part", part)
            relabeller = Relabeller(opened, part, quality.nodes, order, progress)
            writer.stage("nodes", lambda: relabeller.write_nodes(writer))
            found = writer.stage("edges", lambda: relabeller.write_graph(writer))
            if found != (quality.cut, quality.halo):
                raise RunError(
                    f"{out}: cut {quality.cut} counted before, {found[0]} after relabelling",
                    "This is a defect of gnnx: please report it.",
                )
            if num_parts > 1:
                edges = edges_folder(opened.edge_types[0])
                writer.stage("transpose", lambda: write_transpose(opened, edges, writer, progress))
            counts = {"parts": num_parts, "cut": quality.cut, "halo": sum(quality.halo)}
            writer.report({**opened.manifest.report, **counts})
    return PartitionReport(method, quality, notes)


def _refuse_damage(dataset: store.Dataset, progress: Progress | None) -> None:
    """Hold all pages against their checksums: damage would get new ones, and ids lead anywhere."""
    problems = store.verify(dataset.path, progress=progress)
    if problems:
        raise DataError(str(problems[0]), "Restore the file, or prepare the dataset again.")


def _assign(
    problem: Problem,
    part: NDArray[np.int32],
    method: Method,
    options: tuple[Path, int, float],
    notes: list[str],
) -> tuple[Method, Quality]:
    """Give every node a part; returns the method that did it and what the parts cost."""
    folder, seed, time_limit_s = options
    if problem.num_parts == 1:
        part[:] = 0
        return method, measure(problem, part)
    if method == "quality":
        require_kaminpar()
    if method == "random":
        random_parts(part, problem.num_parts, seed)
    else:
        StreamSearch(problem).place(part)
    fill_empty_parts(part, problem.num_parts)
    quality = measure(problem, part)
    if method != "quality":
        return method, quality
    other = problem.graph.ledger.empty(len(part), np.int32, Tier.HOST, "partition")
    try:
        multilevel_parts(problem, other, folder=folder, seed=seed, time_limit_s=time_limit_s)
    except Abandoned as failure:
        _tell(notes, f"{failure}: the parts are by the method stream")
        return "stream", quality
    StreamSearch(problem).refine(other)
    fill_empty_parts(other, problem.num_parts)
    by_other = measure(problem, other)
    if by_other.alpha < quality.alpha:
        np.copyto(part, other)
        quality = by_other
    return method, quality


def random_parts(part: NDArray[np.int32], num_parts: int, seed: int) -> None:
    """Deal nodes to parts at random: what every other method is held against.

    Parameters
    ----------
    part
        (N,) int32. Overwritten; sizes differ by one at most.
    num_parts
        P, at least 1.
    seed
        Which draw.
    """
    state = np.uint64(Key(seed, layer=_PURPOSE).fold())
    _kernels.draw_parts(state, num_parts, part)


def fill_empty_parts(part: NDArray[np.int32], num_parts: int) -> None:
    """Give each part without a node the last node of the largest part.

    Parameters
    ----------
    part
        (N,) int32. The part of each node.
    num_parts
        P, at most N.
    """
    sizes = np.zeros(num_parts, np.int64)
    _kernels.count_values(part, sizes)
    for empty in np.flatnonzero(sizes == 0) if len(part) else ():
        largest = int(sizes.argmax())
        part[_kernels.last_of(part, largest)] = empty
        sizes[largest] -= 1
        sizes[empty] += 1


def _tell(notes: list[str], line: str) -> None:
    _log.warning("%s", line)
    notes.append(line)


def _check(method: str, order: str, balance: Sequence[str], imbalance: float) -> None:
    """Refuse values that would otherwise be taken for others."""
    for name, value in (("method", method), ("order", order)):
        if value not in _CHOICES[name]:
            raise UsageError(
                f"{name} {value!r} is not a choice", f"Choose from {', '.join(_CHOICES[name])}."
            )
    if not balance or not set(balance) <= set(WEIGHTS):
        raise UsageError(
            f"parts cannot share {','.join(balance) or 'nothing'} evenly",
            f"Give --balance one or more of {', '.join(WEIGHTS)}, with commas between.",
        )
    if not 0 <= imbalance < 1:
        raise UsageError(f"an imbalance of {imbalance}", "Give a share such as 0.03.")
