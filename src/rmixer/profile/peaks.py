"""What devices can do at most: one row per kind, each with where its figures are from.

FLOPs are single precision without tensor cores, which is what PyTorch's matrix products use unless
told otherwise (``torch.backends.cuda.matmul.allow_tf32`` is off by default since 1.12).
"""

from __future__ import annotations

from dataclasses import dataclass

from rmixer.errors import UnknownNameError

_PCIE3, _PCIE4, _PCIE5 = 15.75e9, 31.5e9, 63.0e9  # 16 lanes, one way


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of one kind of device.

    Attributes:
        kind: as people write it.
        flops: single precision, per second.
        bandwidth: of its memory, bytes per second.
        link: to the host, bytes per second one way; 0 for the host itself.
        source: of the figures.
    """

    kind: str
    flops: float
    bandwidth: float
    link: float
    source: str


#: Of names that fit several rows the longest counts: ``A100-PCIE-40GB`` is not ``A100``.
TABLE = (
    Peaks(
        "K80", 2.80e12, 240e9, _PCIE3, "NVIDIA Tesla K80 board specification: half a board, base"
    ),
    Peaks("P100", 10.6e12, 732e9, _PCIE3, "NVIDIA Tesla P100 data sheet, SXM2"),
    Peaks("P100-PCIE", 9.3e12, 732e9, _PCIE3, "NVIDIA Tesla P100 data sheet, PCIe 16 GB"),
    Peaks("V100", 15.7e12, 900e9, _PCIE3, "NVIDIA V100 data sheet, SXM2"),
    Peaks("V100-PCIE", 14.0e12, 900e9, _PCIE3, "NVIDIA V100 data sheet, PCIe"),
    Peaks("T4", 8.1e12, 320e9, _PCIE3, "NVIDIA T4 data sheet"),
    Peaks("A100", 19.5e12, 2039e9, _PCIE4, "NVIDIA A100 data sheet, SXM 80 GB"),
    Peaks("A100-SXM4-40GB", 19.5e12, 1555e9, _PCIE4, "NVIDIA A100 data sheet, SXM 40 GB"),
    Peaks("A100-PCIE-40GB", 19.5e12, 1555e9, _PCIE4, "NVIDIA A100 data sheet, PCIe 40 GB"),
    Peaks("A100 80GB PCIe", 19.5e12, 1935e9, _PCIE4, "NVIDIA A100 data sheet, PCIe 80 GB"),
    Peaks("L4", 30.3e12, 300e9, _PCIE4, "NVIDIA L4 data sheet"),
    Peaks("H100", 67.0e12, 3350e9, _PCIE5, "NVIDIA H100 data sheet, SXM"),
    Peaks("H100 PCIe", 51.0e12, 2000e9, _PCIE5, "NVIDIA H100 data sheet, PCIe"),
    Peaks("H200", 67.0e12, 4800e9, _PCIE5, "NVIDIA H200 data sheet, SXM"),
)


def peaks_of(name: str) -> Peaks | None:
    """The row for a GPU's name as its driver or a person says it; None where there is none."""
    words = _words(name)
    fitting = [row for row in TABLE if _is_part(_words(row.kind), words)]
    return max(fitting, key=lambda row: len(row.kind), default=None)


def known_peaks(name: str) -> Peaks:
    """The same.

    Raises:
        UnknownNameError: the table has no such GPU; with all that it has.
    """
    found = peaks_of(name)
    if found is None:
        raise UnknownNameError("kind of GPU", name, [row.kind for row in TABLE])
    return found


def _words(name: str) -> list[str]:
    """``NVIDIA A100-SXM4-80GB`` as its parts; T4 is no part of GT430, nor L4 of L40."""
    return name.upper().replace("-", " ").replace("_", " ").split()


def _is_part(some: list[str], words: list[str]) -> bool:
    return any(words[at : at + len(some)] == some for at in range(len(words)))
