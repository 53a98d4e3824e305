"""Tests of what a job is and of its table of states.

Here: every event in every state, and what random stories keep true.
No store, no engine.
"""
