"""Parse once, map many: one builder, whole data sets or none, and a key that notices changes."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset
from rmixer.data.format import load_format
from rmixer.data.generate import write
from rmixer.data.generated import sizes_of
from rmixer.data.table import Table
from rmixer.errors import StorageError

#: How often a builder is killed; 20 by hand.
KILLS = int(os.environ.get("RMIXER_TEST_KILLS", "3"))
GENERATED = {"format": "generated", "like": "criteo", "rows": 3000, "max_table_rows": 50}


def key(data: dict, cache_dir: Path) -> str:
    spec = schema.parse(data)
    return cache.cache_key(spec, load_format(spec.format)(spec), cache_dir)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_job_finds_what_the_first_one_built(tmp_path: Path) -> None:
    spec, seen = schema.parse(GENERATED), []
    first = cache.prepare(spec, tmp_path, report=lambda what, rows: seen.append((what, rows)))
    assert seen == [("building", 3000)]
    second = cache.prepare(spec, tmp_path, report=lambda *_: pytest.fail("built twice"))
    assert first == second
    assert cache.verify(first) == []


def test_the_key_depends_on_content_and_meaning_but_not_on_path_or_time(tmp_path: Path) -> None:
    a, b = tmp_path / "a.tsv", tmp_path / "b.tsv"
    write("criteo", sizes_of("criteo", rows=20), a)
    b.write_bytes(a.read_bytes())
    os.utime(b, (1, 1))
    base = {"format": "criteo", "path": str(a)}
    same = key(base, tmp_path)
    assert key({**base, "path": str(b)}, tmp_path) == same
    assert key({**base, "valid": {"fraction": 0.1}}, tmp_path) == same
    for changed in ({"valid": {"seed": 1}}, {"transform": {"min_count": 2}}):
        assert key({**base, **changed}, tmp_path) != same
    b.write_bytes(a.read_bytes().replace(b"0", b"1", 1))
    assert key({**base, "path": str(b)}, tmp_path) != same


def test_a_file_that_changed_is_noticed_although_its_size_and_time_are_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"abc")
    os.utime(path, (1, 1))
    time.sleep(0.02)
    before = cache.fingerprint(path, tmp_path)
    path.write_bytes(b"abd")
    os.utime(path, (1, 1))
    assert cache.fingerprint(path, tmp_path) != before


def test_the_hash_of_a_settled_file_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"abc")
    monkeypatch.setattr(cache, "_SETTLED_SECONDS", -10.0)
    first = cache.fingerprint(path, tmp_path)
    (memo,) = (tmp_path / "fingerprints").iterdir()
    assert memo.read_text() == first
    memo.write_text("f" * 32)
    assert cache.fingerprint(path, tmp_path) == "f" * 32
    path.write_bytes(b"abcd")
    assert cache.fingerprint(path, tmp_path) not in (first, "f" * 32)


def test_a_damaged_data_set_is_found_and_built_again(tmp_path: Path) -> None:
    spec = schema.parse(GENERATED)
    folder = cache.prepare(spec, tmp_path)
    right = content(folder)
    raw = bytearray((folder / "rows.i4").read_bytes())
    raw[100] ^= 1
    (folder / "rows.i4").write_bytes(raw)
    assert cache.verify(folder) == ["rows.i4"]
    (folder / "rows.i4").write_bytes(raw[:-4])  # a wrong size is seen without reading
    assert content(cache.prepare(spec, tmp_path)) == right
    (folder / "manifest.json").write_text(
        (folder / "manifest.json").read_text().replace("3000", "3001")
    )
    with pytest.raises(StorageError, match="damaged"):
        cache.read_manifest(folder)
    assert content(cache.prepare(spec, tmp_path)) == right


BUILDER = """
import sys, time
from rmixer.data import cache, schema, build
spec = schema.parse({data!r})
def report(what, rows):
    print(what, rows, flush=True)
    if what == "building":
        time.sleep({pause})
print(cache.prepare(spec, __import__("pathlib").Path({folder!r}), report=report), flush=True)
"""


def builder(folder: Path, pause: float, data: dict) -> subprocess.Popen[str]:
    code = BUILDER.format(data=data, folder=str(folder), pause=pause)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_second_builder_takes_over_when_the_first_is_killed(tmp_path: Path) -> None:
    expected = content(cache.prepare(schema.parse(GENERATED), tmp_path / "expected"))
    first = builder(tmp_path / "cache", 60, GENERATED)
    assert first.stdout is not None
    assert first.stdout.readline() == "building 3000\n"
    second = builder(tmp_path / "cache", 0, GENERATED)
    assert second.stdout is not None
    assert second.stdout.readline() == "waiting 0\n"
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    first.stdout.close()
    lines = second.stdout.read().splitlines()
    second.stdout.close()
    assert second.wait() == 0
    assert "building 3000" in lines
    assert content(Path(lines[-1])) == expected
    assert not list((tmp_path / "cache").glob("*.building"))


def test_killed_at_any_moment_the_next_builder_makes_the_right_data_set(tmp_path: Path) -> None:
    expected = content(cache.prepare(schema.parse(GENERATED), tmp_path / "expected"))
    # Killed as each of these calls begins: while files are synced, before and after the rename.
    for number in (1, 4, 8, 9):
        code = (
            "import os, signal, pathlib; from rmixer.data import cache, schema\n"
            "count = 0\n"
            "real = cache._sync\n"
            "def sync(path):\n"
            "    global count; count += 1\n"
            f"    if count == {number}: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    real(path)\n"
            "cache._sync = sync\n"
            f"cache.prepare(schema.parse({GENERATED!r}), pathlib.Path({str(tmp_path / 'c')!r}))\n"
        )
        subprocess.run([sys.executable, "-c", code], check=False)
    assert content(cache.prepare(schema.parse(GENERATED), tmp_path / "c")) == expected


def test_a_full_disk_is_said_and_nothing_half_built_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("rmixer.data.build.build", full)
    with pytest.raises(StorageError, match=r"disk full: .* free; make room"):
        cache.prepare(schema.parse(GENERATED), tmp_path)
    assert not list(tmp_path.glob("*.building"))


def test_a_really_full_disk(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from rmixer.data import cache, schema\n"
        "from rmixer.errors import StorageError\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "try:\n"
        "    cache.prepare(schema.parse({**" + repr(GENERATED) + ", 'rows': 200000}), folder)\n"
        "except StorageError as error:\n"
        "    assert 'disk full' in str(error), error\n"
        "    assert [p.name for p in folder.iterdir() if p.suffix == '.building'] == []\n"
        "    print('said')\n"
    )
    mount = f'mount -t tmpfs -o size=4m tmpfs {tmp_path} && exec "$0" -c "$1" {tmp_path}'
    result = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, sys.executable, code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unshare" in result.stderr or "mount" in result.stderr:
        pytest.skip(f"a small tmpfs cannot be mounted here: {result.stderr.strip()}")
    assert result.stdout == "said\n", result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied"):
        cache.prepare(schema.parse(GENERATED), tmp_path / "cache")


#: Tells of every block read and every look at the later passes, and can be stopped at each.
TOLD = """
import os, pathlib, sys
from rmixer.data import build, cache, schema, text
text.BLOCK_BYTES = 40_000
def tell(*_):
    os.write(1, b".")
real = cache._sync
cache._sync = lambda path: (tell(), real(path))
spec = schema.parse({"format": "criteo", "path": sys.argv[1], "transform": {"bins": 4}})
seen = []
def asked():
    tell()
    return False
def report(what, rows):
    seen.append(rows)
folder = cache.prepare(spec, pathlib.Path(sys.argv[2]), should_stop=asked, report=report)
print("", folder, len(seen), seen[0] if seen else 0, sep="\\n")
"""


def test_killed_at_random_moments_the_data_set_is_the_right_one(tmp_path: Path) -> None:
    """kill -9 while it reads, counts, writes, syncs: what was read is taken over, every byte is right."""
    path = tmp_path / "a.tsv"
    write("criteo", sizes_of("criteo", rows=6000, max_table_rows=50), path)

    def start(place: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", TOLD, str(path), str(tmp_path / place)]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    def finished(process: subprocess.Popen[bytes]) -> tuple[str, str, Path]:
        dots, folder, reports, first, _ = process.communicate()[0].decode().split("\n")
        assert process.returncode == 0
        return dots, f"{reports} from {first}", Path(folder)

    dots, _, undisturbed = finished(start("alone"))
    chance, moments = random.Random(3), [len(dots) // 4]
    moments += [chance.randrange(1, len(dots)) for _ in range(KILLS - 1)]
    for moment in moments:
        process = start("killed")
        assert process.stdout is not None
        process.stdout.read(moment)  # fewer if it comes to its end before
        process.kill()
        process.wait()
        process.stdout.close()
    _, _, folder = finished(start("killed"))
    assert content(folder) == content(undisturbed)
    assert cache.verify(folder) == []
    assert not list((tmp_path / "killed").glob("*.building"))


def test_a_stopped_builder_leaves_what_it_has_read_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a stopped build are not parsed again, unless the file has changed meanwhile."""
    monkeypatch.setattr("rmixer.data.text.BLOCK_BYTES", 40_000)
    path = tmp_path / "a.tsv"
    write("criteo", sizes_of("criteo", rows=2000), path)
    spec = schema.parse({"format": "criteo", "path": str(path)})
    whole: list[int] = []
    expected = cache.prepare(spec, tmp_path / "a", report=lambda _, rows: whole.append(rows))
    before: list[int] = []
    with pytest.raises(cache.Stopped):
        cache.prepare(
            spec,
            tmp_path / "b",
            should_stop=lambda: len(before) == 2,
            report=lambda _, rows: before.append(rows),
        )
    parsed: list[int] = []
    real = Table.parsed
    monkeypatch.setattr(Table, "parsed", lambda *a: (parsed.append(1), real(*a))[1])
    assert content(cache.prepare(spec, tmp_path / "b")) == content(expected)
    assert len(whole) > 4
    assert len(parsed) == len(whole) - 3, "two reported blocks, and the one that was stopped at"


def test_columns_are_mapped_and_cannot_be_written(tmp_path: Path) -> None:
    data = Dataset(cache.prepare(schema.parse(GENERATED), tmp_path))
    assert isinstance(data._rows.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        data._rows[0, 0] = 1
