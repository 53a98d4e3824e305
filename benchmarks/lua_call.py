"""Row 2: one call of our job_submit module inside Lua 5.1, with twenty classes and a catalogue of 1,000 nodes.

The job is a Lua table, so that the figure is the module's own work; row 1 has the whole of it.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lupa import lua51

from benchmarks import pool_files
from benchmarks.row import Row, percentile

CALLS = 4_000
WARM_UP = 200
MEDIAN_BOUND_US = 100.0
REQUESTS = ("vgpu", "vgpu:20gb", "vgpu:1/4", "vgpu:2g.20gb:2", "vgpu:small")

SETUP = """
slurm = { SUCCESS = 0, ERROR = -1, log_user = function() end, log_info = function() end, log_error = function() end }
local vgpu = dofile(folder .. "/vgpu.lua")
vgpu.catalogue = folder .. "/catalogue"
function call(gres)
   local job = { tres_per_node = "gres:" .. gres, partition = "gpu", min_nodes = 1, max_nodes = 1, num_tasks = 1,
                 cpus_per_task = 1, ntasks_per_node = 65534, script = "#!/bin/sh" }
   local rc = vgpu.submit(job, {}, 1000)
   return rc == 0 and job.gres
end
"""


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as folder:
        pool_files.install_job_submit(Path(folder))
        lua = lua51.LuaRuntime()
        lua.globals().folder = folder
        lua.execute(SETUP)
        call = lua.globals().call
        for request in REQUESTS:
            if not call(request):
                raise RuntimeError(f"the module refused {request}")
        times = _time(call)
    beside: dict[str, float | str] = {
        "p95_us": round(percentile(times, 0.95), 1),
        "classes": pool_files.CLASSES,
        "nodes": pool_files.NODES,
    }
    median = statistics.median(times)
    yield Row(name="Lua call, median", value=median, unit="us", bound=MEDIAN_BOUND_US, beside=beside)


def _time(call: Callable[[str], object]) -> list[float]:
    times = []
    for nth in range(WARM_UP + CALLS):
        request = REQUESTS[nth % len(REQUESTS)]
        start = time.perf_counter_ns()
        call(request)
        times.append((time.perf_counter_ns() - start) / 1000)
    return times[WARM_UP:]
