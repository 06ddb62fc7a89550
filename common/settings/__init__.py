"""Everything a run is told, one row a setting. Read settings.py first."""
