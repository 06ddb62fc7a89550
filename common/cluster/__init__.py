"""How processes form one cluster, and detect that one is lost. Read process_group.py first."""
