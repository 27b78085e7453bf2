"""Comparing the policies of runs: statistics, tables, figures and files."""
