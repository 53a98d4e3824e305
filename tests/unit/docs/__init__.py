"""The documentation is tested: its commands exist, its files load, its tables are what the code does.

Here: the extractor of blocks, and the checks that need no daemon. End-to-end tests run those marked `run:`.
Not here: texts.
"""
