"""What clients ask, and how each request is answered."""
