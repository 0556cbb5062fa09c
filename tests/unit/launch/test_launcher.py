"""The injected ``sitecustomize``: programs of others are counted and traced, and run as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmixer import launch
from rmixer.launch.page import read_progress

LAUNCH = str(Path(launch.__file__).parent)
TRAIN = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.Adam(model.parameters())
for step in range(int(sys.argv[1])):
    loss = model(torch.randn(32, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step(); other.step()
print("finished", step)
"""


def run(
    folder: Path, *words: str, script: str = TRAIN, path: str = LAUNCH, **more: str
) -> subprocess.CompletedProcess[str]:
    """A script in a directory, with the launcher first on the path."""
    (folder / "train.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": path, **more}
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_steps_of_the_first_optimizer_are_counted(tmp_path: Path) -> None:
    """Two optimizers step in turn; a step is one of the first, its samples the batch."""
    page = tmp_path / "progress"
    done = run(tmp_path, "train.py", "7", RMIXER_PROGRESS=str(page))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "finished 6\n"
    seen = read_progress(str(page))
    assert seen is not None
    assert seen["step"] == 7
    assert seen["samples"] == 32 * 7
    assert seen["first_step_at"] > 0


LOOKS = """
import torch
from torch.nn.modules import module
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for step in range(12):
    model(torch.randn(16, 4)).sum().backward()
    optimizer.step()
    seen.append(bool(module._global_forward_hooks))
print(seen.index(False), any(seen[8:]))
"""


def test_modules_are_watched_in_the_first_steps_only(tmp_path: Path) -> None:
    """Then a program's modules are called as without us; its samples go on by the last batch."""
    page = tmp_path / "progress"
    done = run(tmp_path, "train.py", script=LOOKS, RMIXER_PROGRESS=str(page))
    assert done.stdout == "7 False\n", done.stderr
    seen = read_progress(str(page))
    assert seen is not None
    assert seen["samples"] == 12 * 16


def test_nothing_happens_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Without the variables torch is not even looked for."""
    script = "import sys; print([f for f in sys.meta_path if 'rmixer' in repr(f)])"
    done = run(tmp_path, "train.py", script=script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_another_sitecustomize_is_run_too(tmp_path: Path) -> None:
    """The one that ours hides behaves as if ours were not there, also where it fails."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins; builtins.seen = __name__\n")
    both = f"{LAUNCH}{os.pathsep}{other}"
    done = run(tmp_path, "train.py", script="print(seen)", path=both)
    assert done.stdout == "sitecustomize\n", done.stderr


def test_isolated_interpreters_escape(tmp_path: Path) -> None:
    """``-I`` ignores the path: no page, and the program runs."""
    page = tmp_path / "progress"
    done = run(tmp_path, "-I", "train.py", "3", RMIXER_PROGRESS=str(page))
    assert done.stdout == "finished 2\n", done.stderr
    assert not page.exists()


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_where_it_cannot_work_it_is_silent(tmp_path: Path, option: str) -> None:
    """Not a word, not a page, and the program runs."""
    page = tmp_path / "progress"
    done = run(tmp_path, option, "train.py", script="print('ran')", RMIXER_PROGRESS=str(page))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert not page.exists()


def test_a_sitecustomize_that_fails_fails_as_without_us(tmp_path: Path) -> None:
    """Python says so, as it does; the program runs, and is armed all the same."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("raise OSError('theirs')\n")
    script = "import sys; print('rmixer_launcher' in sys.modules)"
    page, both = str(tmp_path / "progress"), f"{LAUNCH}{os.pathsep}{other}"
    done = run(tmp_path, "train.py", script=script, path=both, RMIXER_PROGRESS=page)
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert "theirs" in done.stderr


def test_a_trace_ends_the_program_after_three_steps(tmp_path: Path) -> None:
    """The document is whole, and nothing after the third step has run."""
    out = tmp_path / "trace.json"
    done = run(tmp_path, "train.py", "1000000", RMIXER_TRACE=str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    document = json.loads(out.read_text())
    assert [what for what, _ in document["marks"]].count("step") == 2
    names = [row[2] for row in document["storages"]]
    assert any("0.weight" in name for name in names)
    assert document["host"]["peak_bytes"] > document["host"]["overhead_bytes"] > 0


def test_a_program_that_ends_before_says_so(tmp_path: Path) -> None:
    """No trace, but a note whether torch was there at all."""
    out = tmp_path / "trace.json"
    assert run(tmp_path, "train.py", "1", RMIXER_TRACE=str(out)).returncode == 0
    assert not out.exists()
    assert json.loads((tmp_path / "trace.json.ended").read_text()) == {"torch": True}


@pytest.mark.parametrize("where", ["/nowhere/at/all/progress", "/proc/progress"])
def test_a_page_that_cannot_be_made_stops_nothing(tmp_path: Path, where: str) -> None:
    """The program runs to its end."""
    done = run(tmp_path, "train.py", "3", RMIXER_PROGRESS=where)
    assert done.stdout == "finished 2\n"
    assert done.returncode == 0


SPAWNS = """
import subprocess, sys, torch
if sys.argv[1] == "child":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.step()
else:
    for _ in range(2):
        subprocess.run([sys.executable, "train.py", "child"], check=True)
"""


def test_the_page_is_that_of_the_first_process_that_steps(tmp_path: Path) -> None:
    """An agent that only starts workers does not count; two workers do not share a page."""
    page = tmp_path / "progress"
    done = run(tmp_path, "train.py", "agent", script=SPAWNS, RMIXER_PROGRESS=str(page))
    assert done.returncode == 0, done.stderr
    seen = read_progress(str(page))
    assert seen is not None
    assert seen["step"] == 5
    others = [read_progress(str(path)) for path in tmp_path.glob("progress.[0-9]*")]
    assert [other and other["step"] for other in others] == [5]


FAKE_CUDA = """
import sys, torch
held = {"now": 0, "peak": 0}
torch.cuda.is_initialized = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.memory_stats = lambda index: {
    "reserved_bytes.all.current": held["now"],
    "reserved_bytes.all.peak": held["peak"],
    "allocated_bytes.all.peak": held["peak"] // 2,
}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for size in (10, 400, 40):
    held.update(now=size << 20, peak=size << 20)  # a program may reset the peak
    optimizer.step()
    if size == 400:
        import time
        time.sleep(0.1)  # longer than what is published at most
        optimizer.step()
"""


def test_the_peak_of_cudas_allocator_is_published(tmp_path: Path) -> None:
    """The highest of all that was seen, although the program resets its peak."""
    page = tmp_path / "progress"
    done = run(tmp_path, "train.py", script=FAKE_CUDA, RMIXER_PROGRESS=str(page))
    assert done.returncode == 0, done.stderr
    seen = read_progress(str(page))
    assert seen is not None
    assert seen["device_reserved_peak_bytes"] == 400 << 20
    assert seen["device_allocated_peak_bytes"] == 200 << 20
    assert seen["device_reserved_bytes"] == 40 << 20


PHASES = """
import json, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        time.sleep(0.003)
        return x * 1
    @staticmethod
    def backward(context, gradient):
        time.sleep(0.005)
        return gradient

class Rows(Dataset):
    def __len__(self):
        return 30
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.randn(4)

class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        if closure is not None:
            closure()
        time.sleep(0.002)
        return super().step()

def generated():
    for _ in range(30):
        time.sleep(0.004)
        yield torch.randn(1, 4)

model = torch.nn.Linear(4, 1)
optimizer = SlowSGD(model.parameters(), lr=0.1)
own = dict.fromkeys(("input", "forward", "backward", "optimizer"), 0.0)

def spent(phase, since):
    now = time.perf_counter()
    own[phase] += now - since
    return now

def train(batches, enclosed=False):
    at = time.perf_counter()
    for x in batches:
        at = spent("input", at)
        if enclosed:  # the step calls for the gradient, as that of L-BFGS does
            def closure():
                began = time.perf_counter()
                loss = Slow.apply(model(x)).mean()
                now = spent("forward", began)
                loss.backward()
                own["optimizer"] -= spent("backward", now) - began
            optimizer.step(closure)
        else:
            loss = Slow.apply(model(x)).mean()
            at = spent("forward", at)
            loss.backward()
            at = spent("backward", at)
            optimizer.step()
        at = spent("optimizer", at)

train(generated())
model.eval(); time.sleep(0.3); model.train()  # an evaluation is no phase
train(DataLoader(Rows()))
time.sleep(0.3)  # nor is a checkpoint
train(DataLoader(Rows()), enclosed=True)
print(json.dumps(own))
"""


def test_the_time_of_each_phase(tmp_path: Path) -> None:
    """As the program measures it: batches of its own and of a loader, steps that enclose the rest."""
    page = tmp_path / "progress"
    done = run(tmp_path, "train.py", script=PHASES, RMIXER_PROGRESS=str(page), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    own, seen = json.loads(done.stdout), read_progress(str(page))
    assert seen is not None
    assert seen["step"] == 90
    for phase, seconds in own.items():  # a whole loop in the wrong phase is more than that
        assert seen[f"{phase}_seconds"] == pytest.approx(seconds, rel=0.15, abs=0.08), (own, seen)
