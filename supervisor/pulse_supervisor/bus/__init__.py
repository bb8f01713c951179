"""The message bus between the actors."""
