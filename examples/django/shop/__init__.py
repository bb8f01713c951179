"""The app ``shop`` of the project."""
