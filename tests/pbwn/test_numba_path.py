"""The compiled path: its bits, its threads, its processes, its cache, and what it says where it cannot serve."""

import math
import os
import subprocess
import sys
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pbwn
from drawing import constrained
from pbwn import Axes
from pbwn.paths import numba as compiled
from pbwn.paths.batch import Batch, paths
from pbwn.paths.torch import Entry

UNIT = pbwn.UnitNorm()
WHOLE = {8: torch.int64, 4: torch.int32, 2: torch.int16}


@pytest.fixture
def _two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def network(seed=0):
    torch.manual_seed(seed)
    shapes = [(300, 64, 3, 3), (64, 300, 3, 3), (128, 2000), (7, 5)]
    return [constrained(torch.randn(shape), Axes((0,)), str(index)) for index, shape in enumerate(shapes)]


@pytest.mark.usefixtures("_two_threads")
def test_the_number_of_threads_does_not_change_a_bit():
    parallel, serial = network(), network()
    for entries in (parallel, serial):
        for entry in entries:
            entry.tensor.grad = entry.tensor.detach() * 2 + 1
        batch = Batch(entries, UNIT, backend="numba")
        batch.tangent_()
        batch.project_()
        torch.set_num_threads(1)
    for left, right in zip(parallel, serial, strict=True):
        assert torch.equal(left.tensor, right.tensor)
        assert torch.equal(left.tensor.grad, right.tensor.grad)


@pytest.mark.usefixtures("_two_threads")
def test_large_models_are_shared_among_as_many_threads_as_torch_has(monkeypatch):
    monkeypatch.setattr(compiled, "_SHARED_BYTES", 1)
    loop, rows = compiled._project, []
    monkeypatch.setattr(compiled, "_project", lambda *call: (rows.append(int(call[1][:, 2].sum())), loop(*call)))
    found, expected = network(), network()
    Batch(found, UNIT, backend="numba").project_()
    assert len(rows) == 2
    torch.set_num_threads(1)
    Batch(expected, UNIT, backend="numba").project_()
    assert sum(rows[:2]) == rows[2] == sum(entry.neurons for entry in expected)
    assert all(torch.equal(left.tensor, right.tensor) for left, right in zip(expected, found, strict=True))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6), st.integers(1, 4))
def test_the_shares_of_the_threads_hold_every_row_once_and_differ_by_a_row_at_most(shapes, shares):
    entries = [
        Entry(str(index), torch.empty(shape), Axes((0,)), 1.0, lambda: None, lambda _: None)
        for index, shape in enumerate(shapes)
    ]
    tables = compiled._tables(entries, shares)
    rows = [
        (w, o + n * stride) for table in tables for w, o, count, stride, _, _ in table.tolist() for n in range(count)
    ]
    assert sorted(rows) == [(w, n * shape[1]) for w, shape in enumerate(shapes) for n in range(shape[0])]
    sizes = [int((table[:, 2] * table[:, 4]).sum()) for table in tables]
    fair, longest = sum(sizes) / shares, max(shape[1] for shape in shapes)
    assert len(tables) <= shares
    assert all(size < fair + longest for size in sizes)


PROCESSES = """
import multiprocessing, os, torch
from torch import nn
import pbwn

def project(shape):
    model = nn.Sequential(nn.Linear(*shape), nn.ReLU(), nn.Linear(shape[1], 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, backend="numba", initial=False)
    projection.project()
    assert projection.check().ok

if __name__ == "__main__":
    torch.set_num_threads(2)
    project((400, 500))
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # as every data loader worker does; torch's own threads do not survive a fork
        project((300, 500))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    batches = torch.utils.data.DataLoader(torch.randn(8, 400), batch_size=4, num_workers=1)
    assert len(list(batches)) == 2
    for method in ("forkserver", "spawn"):
        worker = multiprocessing.get_context(method).Process(target=project, args=((400, 500),))
        worker.start()
        worker.join()
        assert worker.exitcode == 0, method
    project((400, 500))
    print("done")
"""


def run_file(program, folder):
    """Run a program that starts processes: spawned ones need its file. Returns its two outputs."""
    file = folder / "program.py"
    file.write_text(program)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=200)
    return done.stdout, done.stderr


def test_forked_spawned_and_served_processes_project_too(tmp_path):
    printed, errors = run_file(PROCESSES, tmp_path)
    assert printed == "done\n", errors


@pytest.mark.parametrize(("halfway", "even"), [(1 + 2**-8, 1.0), (1 + 3 * 2**-8, 1 + 2**-6)])
def test_bfloat16_halfway_between_two_values_goes_to_the_even_one(halfway, even):
    entry = constrained(torch.eye(4).bfloat16(), Axes((0,)))
    Batch([entry], pbwn.UnitNorm(halfway), backend="numba").project_()
    assert torch.equal(entry.tensor, (torch.eye(4) * even).bfloat16())


def test_bfloat16_is_rounded_to_nearest():
    every = torch.arange(1, 1 + 2**15, dtype=torch.int16).view(torch.bfloat16).nan_to_num(1, 1, 1)
    weight = every[:, None].repeat(1, 2)
    weight[:, 1] *= 3
    expected = weight.double() / weight.double().norm(dim=1, keepdim=True)
    entry = constrained(weight.clone(), Axes((0,)))
    Batch([entry], UNIT, backend="numba").project_()
    usual = weight.isfinite().all(1) & (weight.double().norm(dim=1) > 1e-30)
    assert torch.equal(entry.tensor[usual], expected[usual].float().bfloat16())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_row_that_is_not_finite_keeps_every_bit_of_its_nans(dtype):
    weight = torch.randn(4, 40).to(dtype)
    weight.view(WHOLE[weight.element_size()])[2, 5] = -3  # a NaN that no operation gives
    before = weight.clone()
    Batch([constrained(weight, Axes((0,)))], UNIT, backend="numba").project_()
    whole = WHOLE[weight.element_size()]
    assert torch.equal(weight.view(whole)[2], before.view(whole)[2])
    assert not torch.equal(weight[1], before[1])


CASES = [
    (lambda: torch.randn(4, 4).half(), "dtype is torch.float16"),
    (lambda: torch.randn(2, 3, 2, 3, 4, 4)[:, :2, :, :2, :3], "strides"),
    (lambda: torch.randn(4, 1).expand(4, 4), "strides"),
    (lambda: torch.randn(4, 4).T, "not contiguous"),
]


@pytest.mark.parametrize(("make", "reason"), CASES)
def test_a_weight_that_cannot_be_served_is_an_error_when_forced_and_torchs_when_not(make, reason):
    entries = [constrained(make(), Axes((0,)), "odd"), constrained(torch.randn(3, 3), Axes((0,)), "plain")]
    with pytest.raises(ValueError, match=f"cannot serve weight 'odd': .*{reason}"):
        paths(entries, "numba")
    assert paths(entries, "auto") == ["torch", "numba"]


def test_the_print_of_a_projection_counts_the_weights_of_each_path():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).half(), nn.Linear(4, 4), nn.Linear(4, 2))
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "backend numba (2 weights) and torch (1 weight) " in " ".join(str(projection).split())


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import torch, pbwn
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    pbwn.attach(model, optimizer, backend="numba")
except ValueError as error:
    print(error)
print(str(pbwn.attach(model, optimizer)).splitlines()[0])
"""


def test_without_numba_the_default_is_torch_and_forcing_it_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=True)
    refused, printed = done.stdout.splitlines()
    assert refused.startswith('backend="numba": numba cannot be imported')
    assert refused.endswith("pip install 'pbwn[fast]'")
    assert printed.endswith("backend torch")


def test_numba_is_imported_only_for_a_projection_that_takes_it():
    program = (
        "import sys, torch, pbwn; model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2));"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1);"
        "projection = pbwn.attach(model, optimizer, backend='torch');"
        "projection.project(); print('numba' in sys.modules);"
        "projection.detach(); pbwn.attach(model, optimizer); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_one_call_serves_all_weights_of_a_dtype(monkeypatch):
    calls = []
    monkeypatch.setattr(compiled, "_project", lambda elements, *_: calls.append(elements.dtype.name))
    entries = [*network(), constrained(torch.randn(3, 3).double(), Axes((0,)), "wide")]
    Batch(entries, UNIT, backend="numba").project_()
    assert calls == ["float32", "float64"]


FORK = """
import os, signal, sys, torch
from torch import nn
import pbwn

torch.set_num_threads(2)
torch.randn(2000, 2000).mul_(2)  # starts the threads that a child will not have
child = os.fork()
if not child:
    signal.alarm(60)  # ends it where it waits for them
    model = nn.Sequential(*(nn.Linear(100, 100) for _ in range(30)))
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="numba")
    projection.project()
    os._exit(0)
assert "pbwn.paths.numba" not in sys.modules
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_that_is_the_first_to_load_numba_does_not_wait_for_lost_threads():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=200)
    assert done.stdout == "0\n", done.stderr


def test_a_numba_that_breaks_when_imported_is_passed_over_and_its_reason_told(tmp_path):
    (tmp_path / "numba.py").write_text("raise AttributeError('module coverage has no attribute types')")
    program = WITHOUT_NUMBA.replace('sys.modules["numba"] = None', f"sys.path.insert(0, {str(tmp_path)!r})")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    refused, printed = done.stdout.splitlines()
    assert refused == (
        'backend="numba": numba is installed and cannot be imported '
        "(AttributeError: module coverage has no attribute types)"
    )
    assert printed.endswith("backend torch")


@pytest.mark.parametrize(
    "constraint", [UNIT, pbwn.MaxNorm(3.0), pbwn.UnitNorm(1e-35), pbwn.UnitNorm("initial")], ids=repr
)
@pytest.mark.parametrize("dtype", list(compiled._ELEMENTS), ids=str)
def test_a_row_does_not_depend_on_those_that_are_scaled_or_measured_beside_it(dtype, constraint):
    generator = torch.Generator().manual_seed(0)
    for fan_in in (1, 7, 8, 27, 33, 63, 64, 161, 300, 4609):
        memory = torch.randn(1 + 41 * (fan_in + 3), generator=generator).to(dtype)
        rows = memory[1:].view(41, -1)[:, :fan_in]  # an element off, and three between two rows
        rows[3], rows[5], rows[11], rows[20] = 0, torch.nan, rows[11] * 1e-30, rows[20] * 1e30
        rows[30:34] = torch.eye(fan_in, dtype=dtype)[0]  # on the sphere, to the last bit
        radii = torch.arange(41, dtype=torch.float64) if constraint == pbwn.UnitNorm("initial") else None
        alone = memory.clone()
        for number, row in enumerate(alone[1:].view(41, -1)[:, :fan_in]):
            one = constrained(row[None], Axes((0,)))
            own = {} if radii is None else {"weight": radii[number : number + 1]}
            Batch([one], constraint, own, backend="numba").project_()
        together = constrained(rows, Axes((0,)))
        Batch([together], constraint, {} if radii is None else {"weight": radii}, backend="numba").project_()
        bits = WHOLE[memory.element_size()]
        assert torch.equal(memory.view(bits), alone.view(bits)), fan_in


@pytest.mark.parametrize("largest", [1.0, 2.0**20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("fan_in", [500, 1024, 70_000, 400_000])
def test_long_rows_of_equal_elements_stay_within_what_check_allows(fan_in, dtype, largest):
    row = torch.full((1, fan_in), 1 / 3, dtype=dtype)
    row[0, 0] *= largest
    squares = [Fraction(element) ** 2 for element in (row[0, 0].item(), row[0, 1].item())]
    norm = math.sqrt(squares[0] + (fan_in - 1) * squares[1])
    entry = constrained(row, Axes((0,)))
    first = row[0, 0].item()
    Batch([entry], UNIT, backend="numba").project_()
    allowed = {torch.float64: 1e-12, torch.float32: 2e-7}[dtype]
    assert abs(entry.tensor[0, 0].item() / (first / norm) - 1) <= allowed


FIRST_STEP = """
import torch, pbwn
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pbwn.attach(model, optimizer)
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
"""


@pytest.mark.long
def test_compiling_is_announced_once_on_a_machine(tmp_path):
    told = []
    for _ in range(2):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", FIRST_STEP], capture_output=True, text=True, check=True, env=environment
        )
        told.append(done.stderr.count("compiling the projection for this CPU"))
    assert told == [1, 0]
