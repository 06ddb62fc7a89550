"""What every room may know: settings, world, failures, progress. Read settings.py first."""
