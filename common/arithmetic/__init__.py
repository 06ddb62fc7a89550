"""Layers that a CPU computes faster than torch's do. Read choice.py first."""
