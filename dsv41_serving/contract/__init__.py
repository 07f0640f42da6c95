"""The chat contract at the wire: what a client gets, proven clause by clause, and watched for drift.

`check` runs the suite against a deployment, `goldens` holds the prompts the V4.1 encoder must make, `watch` repeats a cheap
part of both and says what changed. Expected values come from the `[contract]` table; nothing here has a second copy of them.
"""
