"""What this machine has, and what processes use of it."""

from rmixer.monitor.gpu_metrics import GpuMetrics, GpuProcess, GpuSample
from rmixer.monitor.gpus import GpuMeter, GpuReading
from rmixer.monitor.machine import (
    discover_gpus,
    discover_node,
    measure_core_flops,
    measure_memory_bandwidth,
    memory_available,
    usable_memory,
)
from rmixer.monitor.pressure import PressureMeter
from rmixer.monitor.processes import (
    ProcessFinder,
    ProcessInfo,
    boot_id,
    descendants,
    process_name,
    process_table,
    read_process,
    trees,
)
from rmixer.monitor.usage import (
    Counters,
    TreeMeter,
    TreeSample,
    own_memory,
    proportional_bytes,
    sample_tree,
)

__all__ = [
    "Counters",
    "GpuMeter",
    "GpuMetrics",
    "GpuProcess",
    "GpuReading",
    "GpuSample",
    "PressureMeter",
    "ProcessFinder",
    "ProcessInfo",
    "TreeMeter",
    "TreeSample",
    "boot_id",
    "descendants",
    "discover_gpus",
    "discover_node",
    "measure_core_flops",
    "measure_memory_bandwidth",
    "memory_available",
    "own_memory",
    "process_name",
    "process_table",
    "proportional_bytes",
    "read_process",
    "sample_tree",
    "trees",
    "usable_memory",
]
