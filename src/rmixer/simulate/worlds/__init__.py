"""Worlds: what decides the true rates of a simulation.

One class in one file, one line in the table of `rmixer.catalog`.
"""
