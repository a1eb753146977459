"""How fast is a training step of GraphSAGE on a CPU, beside torch_geometric's and DGL's layers?

usage: benchmarks/sage_step.py [--dataset FOLDER] [--fanouts 5,5,5] [--dgl-python PATH] ...

Three layers of hidden width 256 on the demo's blocks: its graph, fanouts and batch size. All sides
take the same blocks, features and parameters, and compute the mean, ReLU, cross entropy, all
gradients and a step of Adam. A pass is some batches, so that each finds its rows in no cache.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sides
import torch
from torch import Tensor, nn

import gnnx
from gnnx.prepare import synth

if TYPE_CHECKING:
    from collections.abc import Callable

    from gnnx.graph import Block, MiniBatch

# Runs in a Python that has DGL; what it reads is what `saved` writes.
_DGL = """
import dgl
from dgl.nn import SAGEConv
batches, state = torch.load(arguments[0])

class Sage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            SAGEConv(w.shape[1], w.shape[0], "mean") for w, _, _ in state
        )
        with torch.no_grad():
            for layer, (own, bias, neigh) in zip(self.layers, state):
                layer.fc_self.weight.copy_(own)
                (layer.fc_self.bias if layer.fc_self.bias is not None else layer.bias).copy_(bias)
                layer.fc_neigh.weight.copy_(neigh)

    def forward(self, graphs, h):
        for i, (layer, graph) in enumerate(zip(self.layers, graphs)):
            h = layer(graph, (h, h[: graph.num_dst_nodes()]))
            h = h if i + 1 == len(self.layers) else h.relu()
        return h

def graph(indptr, indices, num_src):
    made = dgl.create_block(("csc", (indptr, indices.long(), [])), num_src, len(indptr) - 1).int()
    return made.formats(["csc", "csr"])

data = [([graph(*part) for part in parts], x, y) for parts, x, y in batches]
for graphs, _, _ in data:
    for block in graphs:
        block.create_formats_()  # as a sampler beside the training would
model = Sage()
optimizer = torch.optim.Adam(model.parameters())

def step():
    for graphs, x, y in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(graphs, x), y)
        loss.backward()
        optimizer.step()

def case():
    graphs, x, y = data[0]
    loss = torch.nn.functional.cross_entropy(model(graphs, x), y)
    print(f"dgl {dgl.__version__}, first loss {float(loss):.6f}", file=sys.stderr)
    return step
"""


class PygSage(nn.Module):
    """The same model of torch_geometric's layers, on bipartite edge lists."""

    def __init__(self, widths: list[int], theirs: nn.Module) -> None:
        super().__init__()
        from torch_geometric.nn import SAGEConv

        self.layers = nn.ModuleList(SAGEConv(*pair) for pair in itertools.pairwise(widths))
        layer: Any
        ours: Any
        for layer, ours in zip(self.layers, theirs.layers, strict=True):  # type: ignore[arg-type]
            conv = ours.conv
            layer.lin_l.weight, layer.lin_l.bias, layer.lin_r.weight = (
                nn.Parameter(p.detach().clone())
                for p in (conv.linear_neigh.weight, conv.linear_self.bias, conv.linear_self.weight)
            )

    def forward(self, edges: list[tuple[Tensor, int]], h: Tensor) -> Tensor:
        """Apply the layers, ReLU between."""
        for i, (layer, (edge_index, num_dst)) in enumerate(zip(self.layers, edges, strict=True)):
            h = layer((h, h[:num_dst]), edge_index)
            h = h if i + 1 == len(self.layers) else h.relu()
        return h


def edge_list(block: Block) -> tuple[Tensor, int]:
    """Edges as torch_geometric takes them, by destination, and D."""
    rows = torch.repeat_interleave(torch.arange(block.num_dst), block.indptr.diff())
    return torch.stack([block.indices.long(), rows]), block.num_dst


def training(model: nn.Module, data: list[tuple[Any, Tensor, Tensor]]) -> Callable[[], None]:
    """Make a pass: a step of training on every batch."""
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> None:
        for blocks, x, y in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(blocks, x), y).backward()
            optimizer.step()

    return run


def gradient(model: nn.Module, batch: tuple[Any, Tensor, Tensor]) -> dict[str, Tensor]:
    """Gradients on one batch, the first layer's weights of the own row."""
    blocks, x, y = batch
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(blocks, x), y)
    loss.backward()
    first: Any = model.layers[0]  # type: ignore[index]
    own = first.conv.linear_self if hasattr(first, "conv") else first.lin_r
    return {"loss": loss.detach(), "weight": own.weight.grad}


def saved(folder: str, batches: list[MiniBatch], model: nn.Module) -> str:
    """Write what the peer needs, as tensors alone."""
    path = f"{folder}/batches.pt"
    data = [([(b.indptr, b.indices, b.num_src) for b in m.blocks], m.x, m.y) for m in batches]
    layers: Any = model.layers
    state = [
        (c.linear_self.weight.detach(), c.linear_self.bias.detach(), c.linear_neigh.weight.detach())
        for c in (layer.conv for layer in layers)
    ]
    torch.save((data, state), path)
    return path


def main() -> None:
    """Sample, check that all sides agree, measure, print."""
    parser = sides.options(__doc__.splitlines()[0], rounds=7)
    parser.add_argument("--dataset", type=Path, help="a prepared one, in place of the demo's")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--fanouts", default="5,5,5")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batches", type=int, default=4)
    args = parser.parse_args()
    clock = sides.start(args)
    torch.manual_seed(0)
    fanouts = [int(fanout) for fanout in args.fanouts.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        path = args.dataset or Path(folder) / "graph"
        if args.dataset is None:
            counts = {"num_nodes": args.nodes, "num_edges": args.edges}
            synth(path, **counts, num_features=128, num_classes=16, seed=0)
        with gnnx.open(path) as dataset:
            batches = list(
                itertools.islice(
                    gnnx.Loader(dataset, fanouts, args.batch_size, prefetch=0), args.batches
                )
            )
            widths = [dataset.num_features, *[args.hidden] * (len(fanouts) - 1)]
            widths.append(dataset.num_classes)
            model = gnnx.nn.SAGE(widths[0], args.hidden, widths[-1], len(fanouts), dropout=0.0)
            shapes = ", ".join(f"{b.num_src}->{b.num_dst}" for b in batches[0].blocks)
            print(f"first batch: {shapes}; edges {[b.num_edges for b in batches[0].blocks]}")
            peer = None
            if args.dgl_python:
                peer = sides.Peer(args.dgl_python, _DGL, args.clock, saved(folder, batches, model))
            measure(args, clock, model, batches, widths, peer)
            del batches


def measure(
    args: Any,
    clock: Callable[[], float],
    model: nn.Module,
    batches: list[MiniBatch],
    widths: list[int],
    peer: sides.Peer | None,
) -> None:
    """Time all sides in turns, and show how they compare."""
    ours = [(m.blocks, m.x, m.y) for m in batches]
    cases = {"gnnx": sides.timed(training(model, ours), clock)}
    try:
        theirs = PygSage(widths, model)
    except ImportError:
        print("torch_geometric is not installed: nothing to compare with")
    else:
        lists = [([edge_list(b) for b in m.blocks], m.x, m.y) for m in batches]
        first, second = gradient(model, ours[0]), gradient(theirs, lists[0])
        gaps = [float((first[k] - second[k]).norm() / second[k].norm()) for k in first]
        print(f"first loss {float(first['loss']):.6f}; loss and gradient differ by {gaps}")
        cases["torch_geometric"] = sides.timed(training(theirs, lists), clock)
    if peer is not None:
        cases["dgl"] = peer.seconds
    seconds = {k: v / len(batches) for k, v in sides.medians(cases, args.rounds).items()}
    if peer is not None:
        peer.close()
    sides.show(
        ("side", "ms a step", "gnnx is times as fast"),
        [(side, 1e3 * spent, spent / seconds["gnnx"]) for side, spent in seconds.items()],
    )
    sides.document(args, seconds=seconds)


if __name__ == "__main__":
    main()
