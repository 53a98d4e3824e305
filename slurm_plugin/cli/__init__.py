"""The `vgpu` command line.

Here: commands (signature, help text, call, render), asking the controller, tables, JSON, what `doctor` checks.
Not here: decisions about slices or Slurm; and nothing heavy is imported before a command needs it.
"""
