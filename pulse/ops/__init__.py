"""What the command line and the dashboard share: doctor, metrics, the demonstration."""
