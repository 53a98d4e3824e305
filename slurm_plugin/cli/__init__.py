"""The `vgpu` command line.

Here: commands (a signature, a help text, a call, a render), the client of the controller, tables, JSON, and what `doctor` checks.
Not here: decisions about slices or Slurm; and nothing heavy is imported before a command needs it.
"""
