"""Quantisation of a program, the part that is alike on every target: which values stay float, PT2E, recognition."""
