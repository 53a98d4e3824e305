"""Tests of the agent's pure parts and of its small borders, each alone.

No daemon, no event loop, no socket may live here; `world` has the GPUs and the port fakes that the agent's tests share.
"""
