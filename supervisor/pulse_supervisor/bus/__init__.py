"""
The message bus between the actors.

- hub: routes hints, counts signs of life, asks for status
- link: the supervisor's end of the bus to one actor
"""
