"""
The command line: a module per command; it shows what the client returns, and contains no SQL.

- admin: commands for the administrator: migrate, check, doctor, passwd, ui, metrics, completion
- control: commands that change the running system: dispatch, topics, schedules
- ctl: the group `pulse ctl`, and the options that its commands share
- jobs: commands about jobs: submit, list, get, why, cancel, retry, change
- lazy: command groups that import a command only when it is called
- lookup: finds the jobs and schedules that are meant by the first characters of an id, or by a key
- main: the command `pulse`, and its exit codes
- options: types of command line values: durations, times, ids, statuses
- output: prints answers as tables, text or JSON
- server: sends a command's request to the dispatcher or the supervisor
- system: commands that watch the running system: status, workers, logs, audit, top
"""
