"""Which reader an input is for: by its suffix, or by what a folder holds.

Letters: N nodes.
"""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.interop import InMemoryGraph, from_networkx, from_scipy
from gnnx.interop.tables import SparseTable
from gnnx.prepare.arrays import check_plain
from gnnx.prepare.edges import PairEdges
from gnnx.prepare.keyed import read_tables
from gnnx.prepare.layouts import csv_dataset, graphbolt, read_papers
from gnnx.prepare.matrix_market import VALUE, MatrixEdges, is_matrix
from gnnx.prepare.pickles import read_planetoid, read_pt
from gnnx.prepare.sources import Reader, Source
from gnnx.prepare.sparse import SparseRows
from gnnx.prepare.values import ArrayRows

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Array, Workspace
    from gnnx.prepare.edges import Layout
    from gnnx.prepare.recipe import Recipe
    from gnnx.threads import Progress

_NETWORKX = {".gml": "read_gml", ".graphml": "read_graphml", ".gexf": "read_gexf"}
_PACKED = (".zip", ".tgz", ".tar", ".tar.gz", ".tar.xz", ".tar.bz2")
_FACTORS = {".gml": 13, ".graphml": 29, ".gexf": 29, ".mat": 40, ".pt": 4, "ind.": 8}
"""Bytes in memory for one of the file, unpacked; .mat may be packed within."""
_MATRICES = ("network", "net", "adj", "A")


class Inputs:
    """Opens inputs of any kind.

    Parameters
    ----------
    reader
        Reads edge lists, arrays, archives and OGB folders.
    workspace
        Takes scratch files.
    pickles
        Whether pickled files may be read.
    progress
        Told how far reading is.
    """

    def __init__(
        self, reader: Reader, workspace: Workspace, *, pickles: bool, progress: Progress | None
    ) -> None:
        self._reader, self._workspace = reader, workspace
        self._pickles, self._progress = pickles, progress

    def recipe(self, recipe: Recipe, root: Path) -> Source:
        """Read the tables of a recipe whose files are below a folder."""
        return read_tables(recipe, root, self._reader, self._workspace, self._progress)

    def open(self, path: Path, layout: Layout | None, split_name: str | None) -> Source:
        """Open a file or folder.

        Parameters
        ----------
        path
            Of the input.
        layout
            Of an array of edges whose shape is (2, 2).
        split_name
            Of the splits of an OGB folder.

        Returns
        -------
        Source
            Its edges, and whatever else it holds.

        Raises
        ------
        DataError
            It cannot be read.
        UsageError
            A package is missing, or pickles are not allowed.
        """
        check_plain(path)
        if path.is_dir():
            found = self._folder(path)
        elif is_matrix(path):
            edges = MatrixEdges(self._workspace, path, self._progress)
            found = Source(edges, num_nodes=[(path.name, edges.num_nodes)])
            found.offered = VALUE if edges.banner.has_values else None
        else:
            with self._workspace.whole(path.name, *_size_in_memory(path)):
                graph = self._whole(path)
                found = None if graph is None else self.in_memory(graph)
                del graph
        return found or self._reader.source(path, layout, split_name)

    def _folder(self, path: Path) -> Source | None:
        papers = read_papers(path, self._workspace)
        if papers is not None:
            return papers
        recipe = csv_dataset(path)
        if recipe is not None:
            return self.recipe(recipe, path)
        return graphbolt(path, self._reader, self._workspace)

    def _whole(self, path: Path) -> InMemoryGraph | None:
        """Read a file of a kind that is read into memory as a whole."""
        planetoid = path.name.startswith("ind.") and path.suffix == ".graph"
        if planetoid or path.name.endswith((".pt", ".pt.zip")):
            if not self._pickles:
                raise UsageError(
                    f"{path.name}: a pickle, which may hold code",
                    "Allow it with --pickles: only plain data are read, all else is refused.",
                )
            return read_planetoid(path) if planetoid else read_pt(path)
        if path.suffix in _NETWORKX:
            return _networkx(path)
        if path.suffix == ".mat":
            return _matlab(path)
        if path.name.endswith(_PACKED):
            raise DataError(f"{path.name}: a packed folder", "Unpack it, and give what is in it.")
        return None

    def in_memory(self, graph: InMemoryGraph) -> Source:
        """Take a graph in memory.

        Parameters
        ----------
        graph
            Which may go once it is taken.

        Returns
        -------
        Source
            The same.
        """
        name = graph.name
        edges = np.ascontiguousarray(graph.edges, np.int64)
        found = Source(PairEdges(self._kept(f"{name}: edges", edges), "rows"))
        found.num_nodes.append((name, graph.num_nodes))
        found.notes += graph.notes
        table = graph.features
        if isinstance(table, SparseTable):
            parts = [
                None if part is None else self._kept(f"{name}: features", part)
                for part in (table.indptr, table.indices, table.data)
            ]
            assert parts[0] is not None
            assert parts[1] is not None
            found.features = SparseRows(parts[0], parts[1], parts[2], table.num_columns)
        elif table is not None:
            found.features = self._kept(f"{name}: features", table)
        if graph.labels is not None:
            found.labels = self._kept(f"{name}: labels", graph.labels)
        found.splits = {split: self._kept(split, ids) for split, ids in graph.splits.items()}
        found.values = {
            key: ArrayRows(self._kept(f"{name}: edge {key}", part))
            for key, part in graph.values.items()
        }
        found.arrays = {key: self._kept(key, part) for key, part in graph.key_arrays().items()}
        return found

    def _kept(self, where: str, values: NDArray[Any]) -> Array:
        scratch = self._workspace.scratch()
        scratch.append(np.ascontiguousarray(values))
        return scratch.array(where, values.shape, values.dtype)


def _size_in_memory(path: Path) -> tuple[int, int]:
    """Bytes of a file that is read as a whole, unpacked, and how many each takes in memory."""
    if not path.is_file():
        return 0, 0
    if path.name.startswith("ind."):
        parts = path.parent.glob(f"{path.stem}.*")
        return sum(part.stat().st_size for part in parts), _FACTORS["ind."]
    if path.name.endswith((".pt", ".pt.zip")) and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return sum(info.file_size for info in archive.infolist()), _FACTORS[".pt"]
    return path.stat().st_size, _FACTORS.get(path.suffix, 0)


def _networkx(path: Path) -> InMemoryGraph:
    try:
        import networkx
    except ImportError:
        raise UsageError(
            f"{path.name} needs networkx, which is not installed", "pip install networkx."
        ) from None
    try:
        graph: InMemoryGraph = from_networkx(getattr(networkx, _NETWORKX[path.suffix])(path))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "Give a file that exists.") from None
    except (networkx.NetworkXException, SyntaxError, ValueError, TypeError, KeyError) as error:
        cause = " ".join(str(error).split())
        raise DataError(f"{path.name}: networkx cannot read it: {cause}", "Mend it.") from None
    graph.name = path.name
    return graph


def _matlab(path: Path) -> InMemoryGraph:
    try:
        import scipy.io
    except ImportError:
        raise UsageError(
            f"{path.name} needs SciPy, which is not installed", "pip install scipy."
        ) from None
    try:
        found = scipy.io.loadmat(path)
    except (OSError, ValueError, NotImplementedError) as error:
        raise DataError(f"{path.name}: cannot be read: {error}", "Save it as version 5.") from None
    names = [name for name in _MATRICES if hasattr(found.get(name), "tocoo")]
    if not names:
        held = ", ".join(name for name in found if not name.startswith("__"))
        raise DataError(
            f"{path.name}: no sparse matrix of edges in it: it holds {held}",
            f"Name it one of {', '.join(_MATRICES)}.",
        )
    graph = from_scipy(found[names[0]])
    graph.name = path.name
    used = {names[0]}
    if hasattr(found.get("group"), "toarray") and found["group"].shape[0] == graph.num_nodes:
        graph.labels = found["group"].toarray().astype(np.int8)
        used.add("group")
    others = [name for name in found if not name.startswith("__") and name not in used]
    graph.notes += [f"{path.name}: {name}: not taken over" for name in others]
    return graph
