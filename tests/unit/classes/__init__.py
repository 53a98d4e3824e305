"""Tests of the pool's classes: which there are, what serves them, what they weigh.

Pure: nothing here may touch a file or a clock.
"""
