"""ADAPTER: everything that talks to Slurm: commands and their texts, what an admin pastes, what is wrong with a site.

Only `process.py` starts anything; every parser, renderer and check is a function of texts and values.
What must not live here: decisions (the controller's and the agent's), and a text of a user's past a parser.
"""
