"""The pages of the dashboard, a module each."""
