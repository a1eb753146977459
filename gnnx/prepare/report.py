"""What a preparation found and did, for people, for scripts and for the manifest."""

from __future__ import annotations

import dataclasses

from gnnx.errors import DataError

EXAMPLES = 10
"""Places that a report names of each finding."""
_FEW = 5  # that are named of the rows of features


@dataclasses.dataclass
class Dropped:
    """Lines of an input that were left out, of which the first are named."""

    count: int = 0
    first: list[str] = dataclasses.field(default_factory=list)
    """File, line and reason."""

    def note(self, place: str) -> None:
        """Count one more.

        Parameters
        ----------
        place
            File, line and reason, for people.
        """
        self.count += 1
        if len(self.first) < EXAMPLES:
            self.first.append(place)

    def clear(self) -> None:
        """Begin anew, since the input is read again."""
        self.count, self.first = 0, []


@dataclasses.dataclass
class Report:
    """Counts of a preparation; equal input and options give equal counts."""

    num_nodes: int = 0
    num_features: int = 0
    feature_dtype: str = ""
    num_classes: int = 0
    edges_read: int = 0
    edges_stored: int = 0
    self_loops: int = 0
    """Edges of the input from a node to itself."""
    duplicates: int = 0
    """Edges of the input beyond the first of each pair of nodes; dropped loops do not count."""
    isolated: int = 0
    """Nodes that no edge of the input touches."""
    dropped: int = 0
    """Edges left out, as ``self_loops`` or ``duplicates`` told."""
    reversed_added: int = 0
    """Reverse edges that ``undirected`` added."""
    loops_added: int = 0
    unknown_ends: int = 0
    """Edges left out since they name nodes that the node table lacks."""
    dropped_lines: int = 0
    """Lines of an edge list left out, as ``bad_lines`` told; not among the edges read."""
    remapped: int = 0
    """Nodes whose id in the input is another one; their keys are kept."""
    id_gaps: int = 0
    """Ids from 0 to the largest one that no edge names, where nodes were numbered anew."""
    nonfinite: dict[int, int] = dataclasses.field(default_factory=dict)
    """Number of NaN and infinite values by column of the features, where there are any."""
    unlabelled: int = 0
    """Nodes without a label, in data with labels."""
    unlabelled_in_splits: int = 0
    """Of the nodes of a split; they were left out of it."""
    train: int = 0
    """Nodes of the split."""
    val: int = 0
    test: int = 0
    in_two_splits: int = 0
    """Nodes of more than one split."""
    examples: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """The first places of a finding, by the name of its count."""
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    """What may be wrong with the data, by the name of its count: what ``strict`` refuses."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What was read otherwise than it stands in the input."""

    def judge(self, where: str, *, duplicates_kept: bool, strict: bool) -> None:
        """Fill `problems`: what changes what is learnt, and nobody asked for.

        Loops, isolated nodes and nodes without a label are facts of many graphs and no problems.

        Parameters
        ----------
        where
            File of the edges, for the message.
        duplicates_kept
            Whether parallel edges are stored, each of which counts in a mean.
        strict
            Refuse data with problems.

        Raises
        ------
        DataError
            There are problems, and they are refused.
        """
        found = {
            "dropped_lines": (self.dropped_lines, "lines that are no edges"),
            "unknown_ends": (self.unknown_ends, "edges that name nodes which are not there"),
            "id_gaps": (self.id_gaps, "ids that no edge names below the largest one"),
            "duplicates": (self.duplicates * duplicates_kept, "parallel edges"),
            "nonfinite": (sum(self.nonfinite.values()), "NaN or infinite features"),
            "unlabelled_in_splits": (self.unlabelled_in_splits, "nodes of splits without a label"),
            "in_two_splits": (self.in_two_splits, "nodes of more than one split"),
        }
        for name, (count, what) in found.items():
            if count:
                places = self.examples.get(name, [])
                shown = "; ".join([*places, *["…"] * (_FEW <= len(places) < count)])
                self.problems[name] = f"{count} {what}" + (f" ({shown})" if shown else "")
        if strict and self.problems:
            raise DataError(
                f"{where}: {', '.join(self.problems.values())}",
                "Mend the data, or leave out --strict.",
            )

    def counts(self) -> dict[str, int]:
        """All single numbers, by name."""
        values = dataclasses.asdict(self)
        counts = {name: value for name, value in values.items() if isinstance(value, int)}
        return {**counts, "nonfinite": sum(self.nonfinite.values())}
