import pynvml
import pytest

from slurm_plugin.errors import GpuBusy, NoRoom, NvmlError
from slurm_plugin.nvml import faults


@pytest.mark.parametrize(
    ("code", "kind", "transient", "hint"),
    [
        (3, NvmlError, False, "virtual machine"),
        (4, NvmlError, False, "root"),
        (9, NvmlError, False, "driver"),
        (15, NvmlError, False, "Xid"),
        (16, NvmlError, False, "reset"),
        (18, NvmlError, False, "reboot"),
        (19, GpuBusy, True, "DCGM"),
        (23, NoRoom, False, "in the way"),
        (999, NvmlError, False, ""),
    ],
)
def test_each_code_is_one_kind_of_error_with_what_to_do(code: int, kind: type, transient: bool, hint: str) -> None:
    error = faults.told(pynvml.NVMLError(code), "cutting GPU 3")
    assert type(error) is kind
    assert error.transient is transient
    assert str(error).startswith("cutting GPU 3: ")
    assert str(error).endswith(f"(NVML {code})")
    assert hint in error.hint
