"""What the pool costs, measured in one run beside what it is compared with: `python -m benchmarks`.

Here: one module a row of measurements. Each gives ratios or figures of this machine, with its load beside them.
Not here: tests. A slow machine makes no row fail; it is marked noisy.
"""
