"""What `pulse doctor` looks at, and what it thinks of it: facts come from the edge, each verdict is a pure function."""
