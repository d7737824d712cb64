"""A run of a model that peer does not know: a convolutional network classifies ten noisy patterns.

Found the run, once: python examples/own_model.py found FOLDER
Take part: python examples/own_model.py TICKET @INVITATION HOME [--yes]

The first prints the commands that serve the run and invite a peer. `docs/guides/own-model.md` explains the rest.
`--yes` agrees to what the run takes. Otherwise the terminal asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor, nn

import peer

Batch = tuple[Tensor, Tensor]
ROUNDS, SYNC_EVERY_S = 12, 5.0
CLASSES, SIZE, BATCH = 10, 12, 16
PATTERNS = torch.randn(CLASSES, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
"""The patterns to classify, the same for all peers."""
NOISE = 3.0


def convolutional_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 3 * 3, CLASSES),
    )


def images(seed: int | None = None) -> Iterator[Batch]:
    """Yield 1,000 batches of images, [BATCH, 1, SIZE, SIZE], and their classes, [BATCH] int64."""
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    for _ in range(1000):
        classes = torch.randint(0, CLASSES, (BATCH,), generator=generator)
        noise = torch.randn(BATCH, 1, SIZE, SIZE, generator=generator)
        yield PATTERNS[classes] + NOISE * noise, classes


class Images:
    """A data loader that draws new images in each pass."""

    def __iter__(self) -> Iterator[Batch]:
        return images()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch, in nats per image."""
    inputs, classes = batch
    return F.cross_entropy(model(inputs), classes)


def found(folder: str) -> None:
    run = peer.found(
        convolutional_network(),
        folder,
        name="patterns",
        title="CNN for ten noisy patterns",
        preset="gossip",
        rounds=ROUNDS,
        sync_every=SYNC_EVERY_S,
    )
    print(f"founded run {run.run_id[:16]} of {run.parameters:,} parameters; serve it with:\n\n    {run.serve_command}")
    print(f"\nand invite each peer, by the id that `peer id show` prints, with:\n\n    {run.invite_command}")


def take_part(ticket: str, invitation: str, home: str, *, agreed: bool) -> None:
    torch.set_num_threads(1)
    model = convolutional_network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = peer.JoinOptions(invitation=invitation, agreed=agreed)
    holdout = [batch for batch, _ in zip(images(seed=1), range(16), strict=False)]
    shown = -1
    with peer.join(
        ticket, model, optimizer, loss=loss, holdout=holdout, home=home, options=options, on_error=print
    ) as swarm:
        for batch in swarm.until_end(Images()):
            value = loss(model, batch)
            swarm.log(loss=value)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            if swarm.round != shown:
                shown = swarm.round
                print(f"round {shown}: loss {swarm.evaluate():.3f} of the hold-out, {swarm.peers} peers", flush=True)
        print(f"the run is over; the hold-out's loss is {swarm.evaluate():.3f}", flush=True)


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--yes"]
    if arguments[0] == "found":
        found(arguments[1])
    else:
        take_part(*arguments, agreed="--yes" in sys.argv)


if __name__ == "__main__":
    main()
