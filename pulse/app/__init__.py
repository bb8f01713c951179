"""For authors of handlers: the app, its handlers, their context, and how an attempt may end."""
