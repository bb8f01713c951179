"""Child processes: how they are described, started, watched and restarted."""
