"""What scripts/ decide, with the programs they call replaced by small ones.

No root is made and nothing is installed here: `make test` itself and `make test-fresh` do that for real.
"""
