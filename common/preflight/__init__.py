"""What is wrong with a cluster, found before its first run. Read examine.py first."""
