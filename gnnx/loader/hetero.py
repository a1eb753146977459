"""Mini-batches of typed graphs: the engine of `Loader`, with rows and blocks by node type."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

from gnnx.cache import HeteroAhead, HeteroDemands, arrange_typed, decide_typed
from gnnx.graph import HeteroBatch
from gnnx.loader.engine import Loader
from gnnx.sample import HeteroSampler, fanouts_by_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gnnx.cache import HeteroDecision, HeteroFeatures
    from gnnx.graph import EdgeType
    from gnnx.loader.seeds import Split
    from gnnx.store import Dataset


class HeteroLoader(Loader):
    """Mini-batches of a split of `Dataset.target`, as `Loader` hands them out.

    Each node type that has features has a cache of its own, all in one budget; rows that do not
    stay are read a batch at a time. A type without features has the constant 1.

    Parameters
    ----------
    dataset
        Opened with the budget to keep.
    fanouts
        As of `HeteroSampler`: one list for all edge types, or one for each.
    batch_size
        B; the last batch of an epoch may be smaller.
    split
        ``"train"``, ``"val"``, ``"test"``, or distinct ids of target nodes.
    seed
        Of order and samples.
    shuffle
        Permute the split anew every epoch.
    drop_last
        Leave out a last batch that is smaller than the others.
    edge_ids
        Blocks carry `Block.e_id`.
    cache
        ``"expected"``, or None to read every row from the disk.
    prefetch
        Batches prepared beside the current one, at most; fewer where a budget is short.
    device
        Where batches are handed out.
    timeout_s
        Time limit of one batch, in seconds.

    Raises
    ------
    UsageError
        An argument is wrong, or no single node type has labels.
    """

    def __init__(  # noqa: PLR0913 - what a user may want of batches
        self,
        dataset: Dataset,
        fanouts: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        batch_size: int,
        *,
        split: Split | torch.Tensor | NDArray[np.int64] = "train",
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        edge_ids: bool = False,
        cache: Literal["expected"] | None = "expected",
        prefetch: int = 2,
        device: torch.device | str = "cpu",
        timeout_s: float = 300.0,
    ) -> None:
        self.fanouts_by_type = fanouts_by_type(fanouts, list(dataset.graphs))
        self._decision: HeteroDecision | None = None
        super().__init__(
            dataset,
            (),
            batch_size,
            split=split,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            edge_ids=edge_ids,
            cache=cache,
            lookahead=None,
            prefetch=prefetch,
            device=device,
            timeout_s=timeout_s,
        )

    def __iter__(self) -> Iterator[HeteroBatch]:  # type: ignore[override]
        """Run one epoch."""
        batches: Iterator[Any] = super().__iter__()
        return batches

    def _sampler_of(self, edge_ids: bool) -> Callable[[], Any]:
        return functools.partial(
            HeteroSampler,
            self.dataset.graphs,
            self.dataset.node_counts,
            self.dataset.target,
            self.fanouts_by_type,
            edge_ids=edge_ids,
        )

    def alone(self) -> HeteroLoader:
        """Make a loader of the same batches, one at a time, that keeps nothing in memory."""
        return HeteroLoader(
            self.dataset,
            self.fanouts_by_type,
            self.batch_size,
            split=self._split,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            edge_ids=self._edge_ids,
            cache=None,
            prefetch=0,
            device=self.device,
            timeout_s=self.timeout_s,
        )

    @property
    def decision(self) -> HeteroDecision:
        """What memory is used for; made when first asked for, then kept."""
        if self._decision is None:
            demands = HeteroDemands(
                seeds=self._seeds.source,
                seeds_bytes=self._seeds.num_bytes,
                fanouts=self.fanouts_by_type,
                batch_size=self.batch_size,
                num_batches=max(1, self.prefetch),
                keep_rows=self.cache is not None,
            )
            self._decision = decide_typed(self.dataset, demands)
        return self._decision

    def _arrange(self) -> Any:
        decision = self.decision
        features = arrange_typed(self.dataset, decision)
        if decision.shared.seeds:
            self._seeds.keep(self._ledger)
        return features

    def _look_ahead(self, ahead: Any, first: int) -> Any:
        features: HeteroFeatures = ahead.features
        return HeteroAhead(features)

    def _fetch(self, ahead: Any, number: int, blocks: list[Any]) -> Any:
        rows = {name: ids.numpy() for name, ids in blocks[0].src_id.items()}
        return ahead.fetch(number, rows, self._ledger)

    def _batch(self, coming: Any, x: Any, y: torch.Tensor | None) -> Any:
        return HeteroBatch(
            seeds=coming.seeds,
            blocks=coming.blocks,
            x=x,
            y=y,
            n_id=coming.blocks[0].src_id,
            input_id=coming.input_id,
        )
