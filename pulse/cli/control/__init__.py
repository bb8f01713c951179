"""
Commands that change the running system.

- dispatch: `pulse ctl dispatch`: pauses and resumes dispatch, of a topic or of everything
- limits: `pulse ctl limits`: lists limits of jobs, and sets them
- schedules: `pulse ctl schedules`: lists, creates, changes, deletes and previews schedules
- topics: `pulse ctl topics`: lists topics, and sets their policies
- topics_page: formats the table of topics
"""
