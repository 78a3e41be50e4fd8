"""The Ladder network (table 8): a classifier that also learns from unlabeled images by denoising its layers."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn import functional

from pbwn_repro.errors import UsageError
from pbwn_repro.models.checks import one_of, positive
from pbwn_repro.models.family import CLASSIFIER_FREE, Family
from pbwn_repro.models.initialisation import UNIFORM, torch7_scale


class CleanLayer(NamedTuple):
    """The results of one layer of the clean pass that the denoising cost needs."""

    z: Tensor
    mean: Tensor
    inverse_std: Tensor


class EncoderLayer(nn.Module):
    """One hidden layer of the Ladder's encoder (table 8).

    z = BN(W h + b) without affine parameters, plus Gaussian noise in the noisy passes; h' = ReLU(scale * (z + shift)).
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.normalisation = nn.BatchNorm1d(out_features, affine=False)
        self.shift = nn.Parameter(torch.zeros(out_features))
        self.scale = nn.Parameter(torch.ones(out_features))

    def activate(self, z: Tensor) -> Tensor:
        return functional.relu((z + self.shift) * self.scale, inplace=True)

    def forward(self, h: Tensor) -> Tensor:
        """Apply the layer without noise; its BN follows the training mode, as in any network."""
        return self.activate(self.normalisation(self.linear(h)))

    def clean(self, h: Tensor) -> CleanLayer:
        """Return batch-normalised z with its batch statistics, and update the running statistics."""
        normalisation = self.normalisation
        assert normalisation.num_batches_tracked is not None
        assert normalisation.momentum is not None
        normalisation.num_batches_tracked.add_(1)
        # The operator behind functional.batch_norm, called for the two results that the latter discards: computing
        # mean and variance a second time costs more than the normalisation itself.
        z, mean, inverse_std = torch.native_batch_norm(
            self.linear(h),
            None,
            None,
            normalisation.running_mean,
            normalisation.running_var,
            True,
            normalisation.momentum,
            normalisation.eps,
        )
        return CleanLayer(z, mean, inverse_std)

    def noisy(self, h: Tensor, passes: list[int], noise: Tensor) -> Tensor:
        """Return noisy z of several passes stacked in `h`, where `passes` are their numbers of rows.

        All passes share one matrix product; each has its own batch statistics.
        """
        return normalise_each(self.normalisation, self.linear(h), passes).add_(noise)


def normalise_each(normalisation: nn.BatchNorm1d, stacked: Tensor, passes: list[int]) -> Tensor:
    """Batch-normalise each pass of a stack with its own statistics, in order."""
    return torch.cat([normalisation(rows) for rows in stacked.split(passes)])


class UnitwiseBilinear(nn.Module):
    """a = w z + v u + m z u + b with four parameters per unit; initially a = z."""

    def __init__(self, num_units: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(num_units))
        self.v = nn.Parameter(torch.zeros(num_units))
        self.m = nn.Parameter(torch.zeros(num_units))
        self.b = nn.Parameter(torch.zeros(num_units))

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        # Factored as z (w + m u) + (b + v u): half the memory passes of the formula as written.
        return z * torch.addcmul(self.w, self.m, u) + torch.addcmul(self.b, self.v, u)


class Combinator(nn.Module):
    """The 'vanilla' combinator: z_hat = a1 + c sigmoid(a2), a1 and a2 unit-wise bilinear in (z, u).

    Initially z_hat = z + sigmoid(z).
    """

    def __init__(self, num_units: int) -> None:
        super().__init__()
        self.direct = UnitwiseBilinear(num_units)
        self.gate = UnitwiseBilinear(num_units)
        self.c = nn.Parameter(torch.ones(num_units))

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        return torch.addcmul(self.direct(z, u), self.c, torch.sigmoid(self.gate(z, u)))


class AugmentedMLP(nn.Module):
    """The AMLP combinator (Pezeshki et al. 2016): a small network of (z, u, z u) for each unit.

    z_hat = o . leaky_relu(A (z, u, z u) + a) + b with four hidden units for each unit of the layer. The first one is
    initialised to pass z on, so that z_hat is initially close to z, as with the vanilla combinator; the others are
    initialised with small weights.
    """

    def __init__(self, num_units: int, hidden: int = 4, std: float = 0.1) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.empty(3, hidden, num_units).normal_(0.0, std))
        self.shift = nn.Parameter(torch.zeros(hidden, num_units))
        self.outer = nn.Parameter(torch.empty(hidden, num_units).normal_(0.0, std))
        self.b = nn.Parameter(torch.zeros(num_units))
        with torch.no_grad():
            self.inner[0, 0], self.outer[0] = 1.0, 1.0

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        z, u = z.unsqueeze(1), u.unsqueeze(1)
        a_z, a_u, a_zu = self.inner
        # Factored as z (A_z + A_zu u) + (A_u u + a), as in the vanilla combinator.
        hidden = z * torch.addcmul(a_z, a_zu, u) + torch.addcmul(self.shift, a_u, u)
        return (functional.leaky_relu(hidden) * self.outer).sum(1) + self.b


COMBINATORS: dict[str, type[nn.Module]] = {"vanilla": Combinator, "amlp": AugmentedMLP}


class DecoderLayer(nn.Module):
    """One layer of the Ladder's decoder (table 8): u = BN(W above + b) without affine, then the combinator.

    The decoder runs only in training, so its BN keeps no running statistics.
    """

    def __init__(self, in_features: int, out_features: int, combinator: str = "vanilla") -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.normalisation = nn.BatchNorm1d(out_features, affine=False, track_running_stats=False)
        self.combinator = COMBINATORS[combinator](out_features)

    def forward(self, noisy_z: Tensor, above: Tensor) -> Tensor:
        z_hat: Tensor = self.combinator(noisy_z, self.normalisation(self.linear(above)))
        return z_hat


class Costs(NamedTuple):
    """The costs of an iteration; the loss is the sum of all."""

    classification: Tensor
    """Cross entropy of the noisy labeled pass."""
    denoising: Tensor
    """Weighted denoising cost of each layer, the pixels first."""


class Ladder(nn.Module):
    """The Ladder network on permutation invariant MNIST (section 4.3, table 8; Rasmus et al. 2015).

    `loss` is one iteration of three passes: clean (unlabeled batch, no gradient), noisy with decoder (the same batch),
    noisy on the labeled batch. Each pass has its own batch statistics. All passes share one BN per encoder layer, whose
    running statistics are updated by the clean, noisy and labeled pass in turn, and those of the output BN by the two
    noisy passes only. `forward` is the clean classifier, with running statistics in evaluation mode.

    Args:
        hidden_sizes: units of the encoder's layers; the decoder mirrors them.
        noise: standard deviation of the Gaussian noise on the pixels and on each z.
        denoising_weights: weight of each layer's cost, the pixels first.
        denoising: how z_hat is normalised with the clean pass's mean m and standard deviation s before it is compared
            with the clean z: 'authors' multiplies, (z_hat - m) s, as in the published code; 'rasmus' divides,
            (z_hat - m) / s, as in Rasmus et al. The pixels are compared without normalisation.
        combinator: how the decoder combines z and u: 'vanilla', or 'amlp' (Pezeshki et al. 2016).

    >>> ladder = Ladder(hidden_sizes=(20, 10), denoising_weights=(1000.0, 10.0, 0.1))
    >>> labeled, unlabeled, labels = torch.rand(10, 1, 28, 28), torch.rand(30, 1, 28, 28), torch.arange(10)
    >>> ladder.loss(labeled, labels, unlabeled).backward()
    >>> ladder.eval()(unlabeled).shape
    torch.Size([30, 10])
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 1,
        image_size: int = 28,
        hidden_sizes: Sequence[int] = (1000, 500, 250, 250, 250),
        noise: float = 0.3,
        denoising_weights: Sequence[float] = (1000.0, 10.0, 0.1, 0.1, 0.1, 0.1),
        denoising: Literal["authors", "rasmus"] = "authors",
        combinator: Literal["vanilla", "amlp"] = "vanilla",
    ) -> None:
        super().__init__()
        positive("ladder", num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        positive("ladder", **{f"hidden_sizes[{i}]": size for i, size in enumerate(hidden_sizes)})
        one_of("ladder", "denoising", denoising, ("authors", "rasmus"))
        one_of("ladder", "combinator", combinator, tuple(COMBINATORS))
        self.sizes = (in_channels * image_size**2, *hidden_sizes)
        if len(self.sizes) < 2 or len(denoising_weights) != len(self.sizes):
            raise UsageError(
                f"ladder: {len(denoising_weights)} denoising_weights for {len(hidden_sizes)} hidden_sizes: "
                "pass one weight for the pixels and one for each of one or more hidden layers"
            )
        if noise < 0:
            raise UsageError(f"ladder: noise must be a standard deviation >= 0, got {noise}")
        self.noise = noise
        self.denoising_weights = tuple(denoising_weights)
        self.denoising = denoising
        layers = nn.ModuleList(map(EncoderLayer, self.sizes[:-1], self.sizes[1:]))
        self.encoder = cast(Iterable[EncoderLayer], layers)  # ModuleList has no element type
        downwards = (num_classes, *reversed(self.sizes))
        self.decoder = nn.ModuleList(DecoderLayer(above, below, combinator) for above, below in pairwise(downwards))
        # Last, as in any classifier, so that a search for the output layer by position finds it.
        self.classifier = nn.Linear(self.sizes[-1], num_classes)
        self.output_normalisation = nn.BatchNorm1d(num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of the clean network."""
        h = self._pixels(x)
        for layer in self.encoder:
            h = layer(h)
        scores: Tensor = self.output_normalisation(self.classifier(h))
        return scores

    def loss(
        self, labeled: Tensor, labels: Tensor, unlabeled: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the training objective of one iteration: cross entropy plus all denoising costs.

        Noise comes from `generator`, or from torch's default one. `torch.compile(ladder.loss)` draws the same noise.
        """
        labeled, unlabeled, noise = self._prepare(labeled, unlabeled, generator)
        classification, denoising = self.costs_given_noise(labeled, labels, unlabeled, noise)
        return classification + denoising.sum()

    def costs(
        self, labeled: Tensor, labels: Tensor, unlabeled: Tensor, *, generator: torch.Generator | None = None
    ) -> Costs:
        """Return the parts of the loss."""
        labeled, unlabeled, noise = self._prepare(labeled, unlabeled, generator)
        return self.costs_given_noise(labeled, labels, unlabeled, noise)

    # Kept out of compiled graphs: a compiler draws different numbers, more slowly, and the run would depend on it.
    # Unlike torch.compiler.disable, this imports the compiler, which takes two seconds, only when the method is called.
    @_disable_dynamo
    def _prepare(
        self, labeled: Tensor, unlabeled: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        if not self.training:
            raise RuntimeError("the ladder's loss needs batch statistics: call train() first")
        labeled, unlabeled = self._pixels(labeled), self._pixels(unlabeled)
        return labeled, unlabeled, self.draw_noise(len(unlabeled) + len(labeled), generator=generator)

    def draw_noise(self, rows: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Return all noise of an iteration, one (rows, size) block per layer, unlabeled rows before labeled ones."""
        blocks = [rows * size for size in self.sizes]
        noise = torch.empty(sum(blocks), device=self.classifier.weight.device, dtype=self.classifier.weight.dtype)
        noise.normal_(0.0, self.noise, generator=generator)
        return tuple(block.view(rows, -1) for block in noise.split(blocks))

    def costs_given_noise(self, labeled: Tensor, labels: Tensor, unlabeled: Tensor, noise: Sequence[Tensor]) -> Costs:
        """Return the costs given flattened batches and noise; the two noisy passes share their matrix products."""
        clean = self._clean_pass(unlabeled)
        passes = [len(unlabeled), len(labeled)]
        h = torch.cat([unlabeled, labeled]) + noise[0]
        noisy_z = [h.split(passes)[0]]
        for layer, layer_noise in zip(self.encoder, noise[1:], strict=True):
            z = layer.noisy(h, passes, layer_noise)
            noisy_z.append(z.split(passes)[0])
            h = layer.activate(z)
        scores = normalise_each(self.output_normalisation, self.classifier(h), passes)
        unlabeled_scores, labeled_scores = scores.split(passes)
        denoising = self._denoising(unlabeled, clean, noisy_z, functional.softmax(unlabeled_scores, dim=1))
        return Costs(functional.cross_entropy(labeled_scores, labels), denoising)

    @torch.no_grad()
    def _clean_pass(self, h: Tensor) -> list[CleanLayer]:
        """Return the denoising targets, from the bottom layer up."""
        clean: list[CleanLayer] = []
        for layer in self.encoder:
            clean.append(layer.clean(h))
            h = layer.activate(clean[-1].z)
        return clean

    def _denoising(self, pixels: Tensor, clean: list[CleanLayer], noisy_z: list[Tensor], above: Tensor) -> Tensor:
        """Run the decoder from the top, and return the weighted cost of each z_hat against its clean z."""
        costs: list[Tensor] = []
        for layer, z, target in zip(self.decoder, reversed(noisy_z), (*reversed(clean), None), strict=True):
            above = layer(z, above)
            if target is None:
                costs.append(functional.mse_loss(above, pixels))
            else:
                factor = target.inverse_std if self.denoising == "rasmus" else target.inverse_std.reciprocal()
                costs.append(functional.mse_loss((above - target.mean) * factor, target.z))
        return torch.stack(
            [weight * cost for weight, cost in zip(self.denoising_weights, reversed(costs), strict=True)]
        )

    def _pixels(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if flat.shape[1] != self.sizes[0]:
            raise ValueError(f"ladder: expects {self.sizes[0]} pixels per image, got a batch of shape {tuple(x.shape)}")
        return flat


FAMILIES = (
    Family(
        pattern=r"ladder",
        members=("ladder",),
        constructor=Ladder,
        paper=UNIFORM,
        authors=torch7_scale(UNIFORM),
        layers={**CLASSIFIER_FREE, "skip": ["decoder.*.combinator.*"]},  # per-unit parameters, not neurons
        task="ladder",
        work="linear",
        recipe={
            "model_options": {"denoising": "authors"},
            "data": {"name": "mnist", "labels": 100},
            "optimizer": {"kind": "adam", "lr": 0.001, "weight_decay": 1e-4},
            "schedule": {"kind": "linear-tail", "constant_steps": 50_000},
            "steps": 75_000,
            "batch_size": 100,
            "evaluate_every": 1_000,
            "checkpoint_every": 1_000,
            "log_every": 100,
        },
    ),
)
