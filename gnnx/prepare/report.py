"""What a preparation found and did, for people, for scripts and for the manifest."""

from __future__ import annotations

import dataclasses
import json


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
    remapped: int = 0
    """Nodes whose id in the input is another one; their keys are kept."""
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
    notes: list[str] = dataclasses.field(default_factory=list)
    """What was read otherwise than it stands in the input."""

    def counts(self) -> dict[str, int]:
        """All single numbers, by name."""
        values = dataclasses.asdict(self)
        counts = {name: value for name, value in values.items() if isinstance(value, int)}
        return {**counts, "nonfinite": sum(self.nonfinite.values())}

    def to_json(self) -> str:
        """JSON object of all fields."""
        return json.dumps(dataclasses.asdict(self))
