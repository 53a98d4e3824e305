"""Tests of the controller's pure parts.

Here: offers, counts, layout, and the decision as a whole.
Not here: the link, or anything with a clock.
"""
