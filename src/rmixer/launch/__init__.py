"""What runs inside a job's process tree: standard library only, Python 3.8 and later.

Nothing here may import the rest of rmixer: a job's interpreter is not ours.
"""
