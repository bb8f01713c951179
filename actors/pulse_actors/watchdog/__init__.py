"""The watchdog: sweeps lapsed leases, expires jobs, applies retention."""
