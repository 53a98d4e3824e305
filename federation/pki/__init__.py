"""Who a site is: its certificate, who believes it, and both ends of a connection that checks it.

Here: a small CA for those who have none, what a daemon loads and reloads, the server's gate, the client's dial.
Not here: what a peer that was believed may do (`federation.access`), and what is said on the connection.
"""
