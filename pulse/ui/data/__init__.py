"""What the dashboard asks of the server and changes there."""
