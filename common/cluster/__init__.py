"""How processes become one cluster, and notice when one is lost. Read process_group.py first."""
