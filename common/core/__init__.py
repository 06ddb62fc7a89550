"""What every room may know: world, failures, progress, precision, events. Read world.py first."""
