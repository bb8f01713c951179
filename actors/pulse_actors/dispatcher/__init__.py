"""The front door: takes in workers and clients, claims and assigns jobs, writes reports, executes every request."""
