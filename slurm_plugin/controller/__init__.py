"""The controller, beside slurmctld: what each idle slice is offered as, what Slurm counts, what GPUs are cut into.

Here: the pure decision (state, offers, counts, layout, decide), and the daemon around it (engine, sessions, report).
Not here: NVML, Slurm's commands, the wire's trust; those are slurm_plugin.nvml, slurm_plugin.slurm, slurm_plugin.link.
"""
