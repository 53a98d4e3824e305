"""Parts of the NVML adapter that need no library.

Here: the list of capability minors, the table of codes, who holds a device.
Not here: anything that calls NVML (tests/contract/nvml).
"""
