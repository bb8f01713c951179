"""What every actor runs on: hello, loop, bus, stop, errors."""
