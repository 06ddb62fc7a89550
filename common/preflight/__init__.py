"""Checks of a cluster before its first run. Read examine.py first."""
