"""Figures, tables and the comparison page, made from logs alone. Read recorded_run.py first."""
