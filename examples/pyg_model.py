"""Models of PyTorch Geometric, unchanged, on gnnx's batches.

Usage: python examples/pyg_model.py DATASET [--model sage|gcn|gat|own] [--memory 128MiB]
"""

import argparse

import torch
from torch import nn
from torch_geometric.nn import GAT, GCN, GraphConv, GraphSAGE, TransformerConv

import gnnx

FANOUTS = [10, 5]


class Own(nn.Module):
    """A model written for PyG: two kinds of convolution, a normalisation and a skip."""

    def __init__(self, num_in: int, hidden: int, num_out: int) -> None:
        super().__init__()
        self.skip = nn.Linear(num_in, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.first = TransformerConv(num_in, hidden // 2, heads=2)
        self.second = GraphConv(hidden, num_out, aggr="mean")

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x, edge_index) + self.skip(x)).relu()
        return self.second(h, edge_index)


def build(name: str, num_in: int, num_out: int) -> nn.Module:
    if name == "own":
        return Own(num_in, 64, num_out)
    stock = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}[name]
    return stock(num_in, 64, num_layers=len(FANOUTS), out_channels=num_out, dropout=0.2)


def accuracy(model: nn.Module, dataset: gnnx.Dataset) -> float:
    """On the test nodes, with every neighbour of every hop."""
    loader = gnnx.Loader(dataset, [-1, -1], 256, split="test", shuffle=False, edge_index=True)
    right = count = 0
    with torch.no_grad():
        for batch in loader:
            out = model.eval()(batch.x, batch.edge_index)[: batch.batch_size]
            right += int((out.argmax(1) == batch.y).sum())
            count += batch.batch_size
    return right / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--model", choices=["sage", "gcn", "gat", "own"], default="sage")
    parser.add_argument("--memory", default="128MiB")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    with gnnx.open(args.dataset, memory=args.memory) as dataset:
        model = build(args.model, dataset.num_features, dataset.num_classes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
        loader = gnnx.Loader(dataset, FANOUTS, batch_size=256, edge_index=True)
        for epoch in range(args.epochs):
            total = 0.0
            for batch in loader:
                out = model.train()(batch.x, batch.edge_index)[: batch.batch_size]
                loss = nn.functional.cross_entropy(out, batch.y, ignore_index=-1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(f"epoch {epoch}: loss {total / len(loader):.4f}")
        print(f"test accuracy {accuracy(model, dataset):.3f}")


if __name__ == "__main__":
    main()
