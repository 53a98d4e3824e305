"""Three sites of real daemons: jobs go between them while daemons are killed and links are cut.

Mirrors federation as a whole. Not here: one part alone, or a backend of the test's own (integration, contract).
"""
