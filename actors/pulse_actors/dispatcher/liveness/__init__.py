"""Dead, hung and silent workers."""
