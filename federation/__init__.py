"""The federation: jobs between sites.

Here: what moves a job from one site to another.
Not here: anything about one cluster's GPUs; that is `slurm_plugin`.
"""
