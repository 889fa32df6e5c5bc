"""Figures over time: each cell through all runs, and the points at which something changed."""
