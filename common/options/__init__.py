"""From the command line to Settings. Read command_line.py first."""
