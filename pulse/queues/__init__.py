"""
Clients of several queues: each submit goes to the queue of its topic; and the queue that a command works for.

- async_queues: `AsyncQueues`, for async code
- parts: which jobs of a submit go to which queue; pure
- queues: `Queues`, for code without an event loop; generated from `async_queues`
- server_option: which server a command works for
"""
