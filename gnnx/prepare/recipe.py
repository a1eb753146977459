"""Recipes: a TOML file that says which tables hold the nodes and edges, and which columns are what.

Every key is checked before a table is opened: a message names the path to the key at fault.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from gnnx.errors import DataError, UsageError
from gnnx.prepare.arrays import check_plain

if TYPE_CHECKING:
    from pathlib import Path

_NONE = (None,) * 4


@dataclasses.dataclass(frozen=True)
class Table:
    """Files of one table: CSV or Parquet."""

    files: tuple[str, ...]
    """Paths and globs, relative to the root; all of one kind, with the same columns."""
    header: bool = True
    """Whether CSV files begin with names of columns; else these are column0, column1, …"""
    delimiter: str | None = None
    """Between the fields of CSV; a comma or, in `.tsv` and `.txt`, a tab by default."""
    quote: str = '"'
    """Around CSV fields that hold delimiters; "" for none."""
    encoding: Literal["utf-8", "latin-1", "utf-16"] = "utf-8"
    """Of CSV."""
    skip: int = 0
    """Lines at the top of CSV files that are no rows."""

    def __post_init__(self) -> None:
        for name, sign, none in ("delimiter", self.delimiter, None), ("quote", self.quote, ""):
            if sign != none and (len(sign or "") != 1 or (sign or "") in "\0\r\n"):
                raise UsageError(f"{name}: {sign!r} is not one character", "Give one character.")
        if self.quote == (self.delimiter or ","):
            raise UsageError(f"quote: {self.quote!r} is the delimiter", "Give another, or none.")
        if self.skip < 0:
            raise UsageError(f"skip: {self.skip} is below 0", "Give 0 or more.")


@dataclasses.dataclass(frozen=True)
class NodeTable(Table):
    """One row a node."""

    key: str | None = None
    """Column by which edges name the node; without it they give the number of the row, from 0."""
    key_type: Literal["string", "integer"] | None = None
    """By default the column's own; fields of CSV are strings, so that "007" is not "7"."""
    features: tuple[str, ...] = ()
    """Columns of numbers or of lists of numbers, in this order; ``*`` and ``?`` as in globs."""
    separator: str | None = None
    """Between the numbers of a feature column that is text."""
    label: str | None = None
    """Column of classes: integers from 0 on, or names, which are numbered in ascending order."""
    labels: tuple[str, ...] = ()
    """Columns of 0 and 1, or of lists of them: several labels a node."""
    tags: str | None = None
    """Column of lists of names, or of text with `separator` between them: likewise."""
    split: str | None = None
    """Column that says train, val (or valid, validation) or test; other rows are in none."""
    train: str | None = None
    """Column of booleans, likewise val and test."""
    val: str | None = None
    test: str | None = None


@dataclasses.dataclass(frozen=True)
class EdgeTable(Table):
    """One row an edge."""

    src: str = "src"
    """Column of the node it leaves."""
    dst: str = "dst"
    """Column of the node it goes to."""
    weight: str | None = None
    """Column of weights."""
    attr: tuple[str, ...] = ()
    """Columns of features of the edge, side by side."""
    time: str | None = None
    """Column of whole numbers."""
    relation: str | None = None
    """Column of names of what an edge says, which are numbered in ascending order."""
    unknown: Literal["refuse", "drop"] = "refuse"
    """What becomes of edges that name a node that the node table lacks."""


@dataclasses.dataclass(frozen=True)
class FeatureFile:
    """Features outside of the node table."""

    file: str
    """`.npy` or text with a row a node, or `.json`: an object of lists of the columns with a 1."""
    by: Literal["row", "key"] = "row"
    """Whether the names in a JSON object are rows of the node table or keys."""


@dataclasses.dataclass(frozen=True)
class SplitFiles:
    """Files of keys, one a line."""

    train: str | None = None
    val: str | None = None
    test: str | None = None


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the preparation; each holds where the command line leaves its default."""

    undirected: bool = False
    self_loops: Literal["keep", "drop", "add"] = "keep"
    duplicates: Literal["keep", "drop", "sum"] = "keep"
    split: str | None = None
    nonfinite: Literal["refuse", "keep", "zero"] = "refuse"
    unlabeled: Literal["refuse", "ignore"] = "refuse"
    seed: int = 0
    dtype: Literal["source", "float32", "float16", "bfloat16", "int8"] = "source"

    def overridden(self, given: Options) -> Options:
        """Take those of the given options that are not at their default."""
        defaults = dataclasses.asdict(Options())
        changed = {n: v for n, v in dataclasses.asdict(given).items() if v != defaults[n]}
        return dataclasses.replace(self, **changed)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a recipe file says."""

    edges: EdgeTable
    nodes: NodeTable | None = None
    features: FeatureFile | None = None
    splits: SplitFiles | None = None
    options: Options = Options()

    def __post_init__(self) -> None:
        nodes = self.nodes or NodeTable(())
        if sum(map(bool, (nodes.label, nodes.labels, nodes.tags))) > 1:
            raise UsageError("nodes.label, labels and tags are alternatives", "Give one of them.")
        if self.features is not None and nodes.features:
            raise UsageError("nodes.features and [features] are both there", "Give one of them.")
        if self.splits is not None and (nodes.split, nodes.train, nodes.val, nodes.test) != _NONE:
            raise UsageError("[splits] and a split column are both there", "Give one of them.")
        if self.features is not None and self.nodes is None:
            raise UsageError(
                "[features] without [nodes]: which row is which node is not known",
                "Give a table of the nodes.",
            )

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Read and check a recipe.

        Parameters
        ----------
        path
            A `.toml` file.

        Returns
        -------
        Recipe
            Whose paths are as they stand in the file.

        Raises
        ------
        DataError
            There is no such file, or it is not TOML.
        UsageError
            A key is unknown, missing, or of the wrong type; the message has the path to it.
        """
        recipe: Recipe = parsed_file(cls, path)
        return recipe


def document_of(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    check_plain(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "Give a file that exists.") from None
    except ValueError as error:  # TOML and UTF-8 alike
        raise DataError(f"{path.name}: not TOML: {error}", "Correct the file.") from None


def parsed_file(kind: type[Any], path: Path) -> Any:
    """Make a dataclass of a TOML file, checking each key by the type of its field."""
    document = document_of(path)
    try:
        return _parsed(kind, document, "")
    except UsageError as error:
        raise UsageError(f"{path.name}: {error.cause}", error.remedy) from None


def _parsed(kind: type[Any], document: dict[str, Any], path: str) -> Any:
    """Make a dataclass of a table of TOML, checking each key by the type of its field."""
    hints = get_type_hints(kind)
    for name in document:
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            known = f"Did you mean {close[0]}?" if close else f"Known are {', '.join(hints)}."
            raise UsageError(f"{path}{name}: unknown key", known)
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING
        if required and field.name not in document:
            raise UsageError(f"{path}{field.name}: missing", "Add it to the recipe.")
    values = {
        name: _checked(hints[name], value, f"{path}{name}") for name, value in document.items()
    }
    try:
        return kind(**values)
    except UsageError as error:
        raise UsageError(f"{path}{error.cause}", error.remedy) from None


def _checked(hint: Any, value: Any, path: str) -> Any:
    options = [option for option in get_args(hint) if option is not type(None)]
    if options and get_origin(hint) not in {tuple, Literal}:  # X | None
        (hint,) = options
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UsageError(f"{path}: {value!r}", f"Choose from {', '.join(get_args(hint))}.")
    elif get_origin(hint) is tuple:
        value = _listed(get_args(hint)[0], value, path)
    elif dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UsageError(f"{path}: {value!r}", f"Write it as a table: [{path}].")
        assert isinstance(hint, type)
        value = _parsed(hint, value, f"{path}.")
    elif type(value) is not hint:
        raise UsageError(f"{path}: {value!r} is not of type {hint.__name__}", "Correct it.")
    return value


def _listed(kind: Any, value: Any, path: str) -> tuple[Any, ...]:
    """Check a list of tables or of strings, for which one string may stand."""
    if dataclasses.is_dataclass(kind):
        if not (isinstance(value, list) and all(isinstance(v, dict) for v in value)):
            raise UsageError(f"{path}: {value!r}", f"Write each as a table: [[{path}]].")
        assert isinstance(kind, type)
        return tuple(_parsed(kind, v, f"{path}[{i}].") for i, v in enumerate(value))
    value = [value] if isinstance(value, str) else value
    if not (isinstance(value, list) and value and all(isinstance(v, str) for v in value)):
        raise UsageError(f"{path}: {value!r}", "Give a string, or a list of strings.")
    return tuple(value)
