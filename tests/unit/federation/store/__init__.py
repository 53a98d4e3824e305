"""Tests of what of the journal needs no disk.

Here: rows and back, which file system a folder is on.
No file may live here.
"""
