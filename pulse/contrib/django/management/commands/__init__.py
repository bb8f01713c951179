"""
Commands of ``manage.py``.

- pulse_worker: runs the handlers of the project
"""
