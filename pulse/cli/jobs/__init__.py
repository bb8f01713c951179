"""Commands about jobs: submit, list, show, change, bulk changes."""
