"""
Bridges: the messages of a broker become jobs, and the ends of jobs messages.

- broker: what a bridge needs of a broker; a further one is a module beside `nats`
- command: the command line
- jobs: the job that a message becomes; pure
- loop: pulls messages, submits their jobs, and acknowledges them; for every broker
- nats: NATS JetStream
- outbox: takes ends of jobs, and publishes them; for every broker
"""
