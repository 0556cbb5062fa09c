"""What this machine has, and what processes use of it."""

from rmixer.monitor.processes import (
    Counters,
    ProcessFinder,
    ProcessInfo,
    TreeMeter,
    TreeSample,
    boot_id,
    descendants,
    process_table,
    read_process,
    sample_tree,
    trees,
)

__all__ = [
    "Counters",
    "ProcessFinder",
    "ProcessInfo",
    "TreeMeter",
    "TreeSample",
    "boot_id",
    "descendants",
    "process_table",
    "read_process",
    "sample_tree",
    "trees",
]
