"""From the database to workers: the claim loop, its cursors, its due times, refused jobs."""
