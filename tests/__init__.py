"""All tests of the repository, by what they need to run.

Here: unit, contract, integration and e2e, each mirroring the tree.
Not here: product code, or anything a product module imports.
"""
