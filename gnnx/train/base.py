"""What a process takes before it holds anything of size."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnnx.inference import parameter_dtype
from gnnx.loader import Loader
from gnnx.memory import rss_bytes
from gnnx.nn import SAGE, Stack, needs_degrees
from gnnx.prepare import synth
from gnnx.store import open as open_dataset
from gnnx.train.metrics import evaluate

if TYPE_CHECKING:
    from torch import nn

    from gnnx.store import Dataset

_TOY_BYTES = 16 << 20


def base_rss_bytes(model: nn.Module | None = None, dataset: Dataset | None = None) -> int:
    """Resident bytes of the process with its kernels compiled and nothing of size held.

    Trains a copy of the model, or a small one, for two steps on a toy graph and evaluates it, so
    that the code a training runs is loaded. The budget does not count these bytes.

    Parameters
    ----------
    model
        The model to be trained, where it is a `gnnx.nn.Stack`; else a small one serves.
    dataset
        The data set to be trained on: the toy has its width.

    Returns
    -------
    int
        Bytes.
    """
    num_features = 8 if dataset is None else max(1, dataset.num_features)
    num_classes = 2 if dataset is None else min(2, dataset.num_classes)
    toy_model: Any = SAGE(num_features, 8, 2, num_layers=2)
    if isinstance(model, Stack):  # a model of the user's own may not be fit for a toy
        toy_model = copy.deepcopy(model).cpu()
        for part in toy_model.modules():
            part.needs_edge_weight = False  # the toy's edges have none
    generator = torch.get_rng_state()
    with tempfile.TemporaryDirectory(prefix="gnnx-") as folder:
        path = Path(folder) / "toy"
        synth(
            path,
            num_nodes=64,
            num_edges=256,
            num_features=num_features,
            num_classes=num_classes,
            memory=_TOY_BYTES,
        )
        with open_dataset(path, memory=_TOY_BYTES) as toy:
            fanouts = [2] * len(toy_model.layers)
            for batch in Loader(toy, fanouts, 4, degrees=needs_degrees(toy_model)):
                x = batch.x.to(parameter_dtype(toy_model))
                toy_model(batch.blocks, x).sum().backward()
            evaluate(toy_model, toy, "test")
    torch.set_rng_state(generator)
    return rss_bytes()
