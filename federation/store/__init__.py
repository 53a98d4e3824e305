"""A site's journal: SQLite, one file, one that writes.

Here: opening it safely, its schema and named queries (.sql), rows to records and back, group commit.
Not here: what a transaction is for; the engine hands in functions over `Store`.
"""
