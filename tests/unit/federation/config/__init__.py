"""fed.yaml: what it may say, and what is told of each mistake.

Here: `federation.config`.
Not here: the files that it names.
"""
