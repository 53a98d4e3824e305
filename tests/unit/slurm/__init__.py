"""The Slurm adapter's pure parts: parsers, what is rendered, what is found wrong; the child process with fake commands.

Here: each module's own cases. Not here: anything that needs a daemon (tests/e2e) or a recording (tests/contract).
"""
