"""Parses the command line into Settings. Read command_line.py first."""
