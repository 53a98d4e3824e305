"""What somebody who proved who he is may do: scrubbed environments, signed jobs, rates, paths, and the record of it.

Here: rules and their checks; who a local caller is; acting as a user; the audit log.
Not here: who a site is (`federation.pki`), which pool takes a job (`federation.policy`).
"""
