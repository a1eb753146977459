"""A training loop of one's own on gnnx's batches: a Loader, an nn.Module, an optimizer.

Usage: python examples/minibatch.py DATASET [--memory 128MiB] [--epochs 3]
"""

import argparse

import torch
from torch import nn

import gnnx
from gnnx.nn import Dropout, SAGEConv

FANOUTS = [10, 5]  # the seeds' hop first


class Hop(nn.Module):
    """One layer, called as layer(block, h): the block's sources in, its destinations out."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(num_in)
        self.drop = Dropout(0.2)
        self.conv = SAGEConv(num_in, num_out, aggr="mean")

    def forward(self, block: gnnx.Block, h: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(block, self.drop(block, self.norm(h))))


class Network(nn.Module):
    """A model that shows its layers, so that it can be evaluated layer by layer as well."""

    def __init__(self, num_features: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [Hop(num_features, hidden), SAGEConv(hidden, num_classes, aggr="mean")]
        )

    def forward(self, blocks: list[gnnx.Block], x: torch.Tensor) -> torch.Tensor:
        for layer, block in zip(self.layers, blocks, strict=True):
            x = layer(block, x)
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--memory", default="128MiB")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    with gnnx.open(args.dataset, memory=args.memory) as dataset:
        model = Network(dataset.num_features, 64, dataset.num_classes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
        loader = gnnx.Loader(dataset, FANOUTS, batch_size=1024)
        for epoch in range(args.epochs):
            total = 0.0
            model.train()
            for batch in loader:
                logits = model(batch.blocks, batch.x)
                loss = nn.functional.cross_entropy(logits, batch.y, ignore_index=-1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            share = loader.stats.rows_from_disk / max(1, loader.stats.rows_requested)
            print(f"epoch {epoch}: loss {total / len(loader):.4f}, {share:.0%} of rows from disk")
        print(f"test accuracy {gnnx.evaluate(model, dataset, 'test').accuracy:.3f}")


if __name__ == "__main__":
    main()
