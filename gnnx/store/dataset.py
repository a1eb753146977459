"""A dataset on disk, opened read-only in memory that does not depend on its size.

Letters: N nodes, E edges, F feature width.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gnnx import threads
from gnnx.errors import DataError, UsageError
from gnnx.memory import Budget, Ledger, format_bytes
from gnnx.store.engine import IO_TIMEOUT_S, ReadEngine
from gnnx.store.features import ConstantFeatures, DiskFeatures
from gnnx.store.keys import Keys, class_names, open_keys, relation_names
from gnnx.store.manifest import HEADER_BYTES, ArrayEntry, Manifest, edges_folder
from gnnx.store.topology import GraphStore

if TYPE_CHECKING:
    import torch

    from gnnx.graph import EdgeType


class Dataset:
    """A folder of arrays, opened read-only by `open`; a context manager.

    Pickled, as for a worker process, it is its path and budget: the worker opens it anew, and has a
    ledger of its own that keeps to the same budget.

    A typed dataset has several node or edge types; the nodes of one of them, `target`, have the
    labels and splits, and `num_nodes`, `features`, `labels`, `split` and their like are of it.
    `graph` is for the special case of one edge type; `array` reads any array by its name.

    Parameters
    ----------
    path
        The folder; it may be moved while it is not open.
    ledger
        Where all buffers of the run come from.
    io_threads
        Reader threads.
    io_timeout_s
        Seconds in which the disk brings nothing, after which reading fails.

    Attributes
    ----------
    path : Path
        The folder.
    manifest : Manifest
        What it holds.
    ledger : Ledger
        As given.
    io_threads : int
        As given.
    io : ReadEngine
        Its readers, with counters of all that was read.
    """

    def __init__(
        self,
        path: Path,
        ledger: Ledger,
        *,
        io_threads: int = 16,
        io_timeout_s: float = IO_TIMEOUT_S,
    ) -> None:
        self.path, self.ledger, self.io_threads = path, ledger, io_threads
        self.manifest = _checked_manifest(path)
        self.io = ReadEngine(ledger, io_threads, io_timeout_s)
        self._arrays: dict[str, DiskFeatures] = {}
        self._graphs: dict[EdgeType, GraphStore] = {}
        self._lock = threads.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        budget, timeout_s = self.ledger.budget, self.io.timeout_s
        return _reopened, (self.path.absolute(), budget, self.io_threads, timeout_s)

    def close(self) -> None:
        """Stop the readers and close the files; reads in flight fail.

        Raises
        ------
        RunError
            The disk does not answer, so that a reader cannot be stopped.
        """
        self.io.close()
        if (
            not self.io.is_dead
        ):  # a reader that is stuck would go on in whatever file has its number
            for array in self._arrays.values():
                array.file.close()

    def __repr__(self) -> str:
        size = format_bytes(sum(entry.num_bytes for entry in self.manifest.arrays.values()))
        nodes = ", ".join(f"{name}: {kind.count}" for name, kind in self.manifest.nodes.items())
        edges = ", ".join(f"{'-'.join(kind)}: {n}" for kind, n in self.manifest.edges.items())
        return f"Dataset({self.path.name}, nodes {{{nodes}}}, edges {{{edges}}}, {size})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hexadecimal: equal for datasets with the same data."""
        return self.manifest.fingerprint

    @property
    def node_types(self) -> list[str]:
        """Names of the node types."""
        return list(self.manifest.nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Edge types, (source type, relation, destination type)."""
        return list(self.manifest.edges)

    @property
    def is_typed(self) -> bool:
        """Whether there is more than one node type, or more than one edge type."""
        return len(self.node_types) > 1 or len(self.edge_types) > 1

    @property
    def target(self) -> str:
        """The node type to be predicted: the only one, or the only one with labels."""
        kinds = self.manifest.nodes
        labelled = [name for name, kind in kinds.items() if kind.num_classes]
        if len(kinds) > 1 and len(labelled) != 1:
            raise UsageError(
                f"{self.path} has {len(kinds)} node types, {len(labelled)} with labels, not one",
                "Name the arrays that you want with Dataset.array.",
            )
        return labelled[0] if labelled else next(iter(kinds))

    @property
    def graphs(self) -> dict[EdgeType, GraphStore]:
        """In-edges by edge type, ascending."""
        return {edge_type: self._graph(edge_type) for edge_type in sorted(self.edge_types)}

    @property
    def node_counts(self) -> dict[str, int]:
        """N by node type, ascending."""
        return {name: self.manifest.nodes[name].count for name in sorted(self.node_types)}

    @property
    def widths(self) -> dict[str, int]:
        """F by node type, ascending; 1 where a type has no features, but the constant 1."""
        return {name: self.features_of(name).row_shape[0] for name in sorted(self.node_types)}

    def features_of(self, node_type: str) -> DiskFeatures | ConstantFeatures:
        """Features of any node type.

        Parameters
        ----------
        node_type
            One of `node_types`.

        Returns
        -------
        DiskFeatures or ConstantFeatures
            Rows (F,); the constant 1 where the type has no features.

        Raises
        ------
        UsageError
            There is no such type.
        """
        name = f"nodes/{self._known(node_type)}/x"
        if name in self.manifest.arrays:
            return self.array(name)
        return ConstantFeatures(self.manifest.nodes[node_type].count, self.ledger)

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.manifest.nodes[self.target].count

    @property
    def num_edges(self) -> int:
        """E, of the only edge type."""
        return self.manifest.edges[self._edge_type()]

    @property
    def num_features(self) -> int:
        """F; 0 without features."""
        entry = self.manifest.arrays.get(f"nodes/{self.target}/x")
        return entry.shape[1] if entry else 0

    @property
    def num_classes(self) -> int:
        """Classes of the labels; 0 without labels."""
        return self.manifest.nodes[self.target].num_classes

    @property
    def feature_dtype(self) -> torch.dtype:
        """Of the features as they are stored; batches have float32 where these have a scale."""
        return self.features.dtype

    @property
    def graph(self) -> GraphStore:
        """In-edges of the only edge type."""
        return self._graph(self._edge_type())

    def _graph(self, edge_type: EdgeType) -> GraphStore:
        with self._lock:
            if edge_type not in self._graphs:
                folder = edges_folder(edge_type)
                self._graphs[edge_type] = GraphStore(
                    self.array(f"{folder}/indptr"),
                    self.array(f"{folder}/indices"),
                    self._array_or_ids(f"{folder}/loops"),
                    self.manifest.nodes[edge_type[0]].count,
                    self.io,
                    self.ledger,
                )
            return self._graphs[edge_type]

    def edge_values(self, name: str) -> DiskFeatures | None:
        """Values of the edges of the only edge type, in the order of its CSR.

        Parameters
        ----------
        name
            ``"weight"``, ``"time"`` or ``"relation"``, rows (); ``"attr"``, rows (F,).
            ``"strength"`` has a row a node: the sum of the weights of its in-edges.

        Returns
        -------
        DiskFeatures or None
            None where the edges have no such values.
        """
        full = f"{edges_folder(self._edge_type())}/{name}"
        return self.array(full) if full in self.manifest.arrays else None

    @property
    def relation_names(self) -> list[str] | None:
        """Names of the relations of edges, by number; None where they have none."""
        return relation_names(self.path, self.manifest, edges_folder(self._edge_type()))

    @property
    def features(self) -> DiskFeatures:
        """Features, rows (F,) as they are stored; their `scale`, if any, makes values of them."""
        return self.array(f"nodes/{self.target}/x")

    @property
    def labels(self) -> DiskFeatures | None:
        """Labels, rows (): a class, or -1 where a node has none."""
        name = f"nodes/{self.target}/y"
        return self.array(name) if name in self.manifest.arrays else None

    @property
    def keys(self) -> Keys:
        """What the input called the nodes: ids to keys, and keys to ids."""
        return self.keys_of(self.target)

    def keys_of(self, node_type: str) -> Keys:
        """Keys of the nodes of any type; UsageError where there is no such type."""
        return open_keys(self.path, self.manifest, self._known(node_type))

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, by number; None where the input had numbers."""
        return class_names(self.path, self.manifest, self.target)

    def split(self, name: str) -> DiskFeatures:
        """Ids of the nodes of a split, ascending.

        Parameters
        ----------
        name
            ``"train"``, ``"val"`` or ``"test"``.

        Returns
        -------
        DiskFeatures
            Rows () int64; none where the dataset has no such split.
        """
        return self._array_or_ids(f"nodes/{self.target}/{name}")

    def array(self, name: str) -> DiskFeatures:
        """Any array, row by row.

        Parameters
        ----------
        name
            As the manifest has it, such as ``"nodes/paper/x"``.

        Returns
        -------
        DiskFeatures
            The same object at every call.

        Raises
        ------
        DataError
            There is no such array.
        """
        if name not in self.manifest.arrays:
            raise DataError(f"{self.path / name}.npy: not in the dataset", "Prepare it with it.")
        return self._open_array(name, self.manifest.arrays[name])

    def _array_or_ids(self, name: str) -> DiskFeatures:
        """Open an array of ids, which is empty where it was not written."""
        entry = self.manifest.arrays.get(name, ArrayEntry((0,), "int64", 0))
        return self._open_array(name, entry)

    def _open_array(self, name: str, entry: ArrayEntry) -> DiskFeatures:
        scaled = name.endswith("/x") and f"{name}_scale" in self.manifest.arrays
        scale = self.array(f"{name}_scale") if scaled else None
        with self._lock:
            if name not in self._arrays:
                path = self.path / f"{name}.npy"
                values = self._values_of(name, entry)
                self._arrays[name] = DiskFeatures(
                    path, entry, self.io, self.ledger, values, scale=scale
                )
            return self._arrays[name]

    def _values_of(self, name: str, entry: ArrayEntry) -> tuple[int, int] | None:
        """Lowest value of an array of ids or classes, and the one after the highest."""
        folder, _, last = name.rpartition("/")
        kind = self.manifest.nodes.get(folder.removeprefix("nodes/"))
        if kind is None or not entry.dtype.startswith("int") or len(entry.shape) > 1:
            return None
        if last in {"train", "val", "test"}:
            return 0, kind.count
        return (-1, kind.num_classes) if last == "y" and kind.num_classes else None

    def _known(self, node_type: str) -> str:
        if node_type not in self.manifest.nodes:
            raise UsageError(
                f"{self.path}: no node type {node_type!r}", f"Choose from {self.node_types}."
            )
        return node_type

    def _edge_type(self) -> EdgeType:
        if self.is_typed or not self.edge_types:
            raise UsageError(
                f"{self.path} has {len(self.node_types)} node types and {len(self.edge_types)} "
                "edge types, not one each",
                "Take Dataset.graphs, which has the edges by type; the verb is for graphs of one.",
            )
        return self.edge_types[0]


def open(
    path: Path | str,
    *,
    memory: str | int | None = None,
    device_memory: str | int | None = None,
    io_threads: int = 16,
    io_timeout_s: float = IO_TIMEOUT_S,
) -> Dataset:
    """Open a dataset: reads the manifest and the files' sizes, and nothing else.

    Parameters
    ----------
    path
        Its folder.
    memory
        Budget of the HOST tier, such as ``"4GiB"``; default: 80 % of what is free.
    device_memory
        Budget of the DEVICE tier; default: no limit.
    io_threads
        Threads that read from the disk.
    io_timeout_s
        Seconds in which the disk brings nothing, after which reading fails.

    Returns
    -------
    Dataset
        Whose ledger keeps the budget.

    Raises
    ------
    DataError
        The folder is no complete dataset, or a file has another size than the manifest says.
    UsageError
        An argument is wrong.
    """
    if io_threads < 1:
        raise UsageError(f"{io_threads} reader threads", "Give at least 1.")
    ledger = Ledger(Budget.parse(memory, device_memory))
    return Dataset(Path(path), ledger, io_threads=io_threads, io_timeout_s=io_timeout_s)


def _reopened(path: Path, budget: Budget, io_threads: int, io_timeout_s: float) -> Dataset:
    """Open what another process has open."""
    return Dataset(path, Ledger(budget), io_threads=io_threads, io_timeout_s=io_timeout_s)


def _checked_manifest(path: Path) -> Manifest:
    """Load the manifest and hold the sizes of all files against it."""
    manifest = Manifest.load(path)
    for name, entry in manifest.arrays.items():
        array = path / f"{name}.npy"
        try:
            found = array.stat().st_size - HEADER_BYTES
        except FileNotFoundError:
            raise DataError(f"{array}: missing", "Restore it, or prepare it again.") from None
        if found != entry.num_bytes:
            raise DataError(
                f"{array}: {entry.num_bytes} bytes expected, {max(0, found)} found",
                "Restore the file, or prepare the dataset again.",
            )
    return manifest
