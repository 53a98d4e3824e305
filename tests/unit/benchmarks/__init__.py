"""What figures are measured with: that it does what it says.

Not here: figures.
"""
