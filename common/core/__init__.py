"""Basics that every room may use: world, failures, precision, events. Read world.py first."""
