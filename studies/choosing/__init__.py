"""Measures strategies on a network and names the one that pays. Read measuring.py first."""
