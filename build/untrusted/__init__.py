"""Checks on files from outside, made before any library that could be hurt by them sees a byte."""
