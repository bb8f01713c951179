"""What several actors use."""
