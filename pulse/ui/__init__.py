"""
The dashboard: pages for operators, served by a process of its own that is a client of the server.

- app: the routes, and what starts and stops with the application
- auth: logins, sessions and the rules for requests
- data: the dashboard's requests to the server
- guard: checks every request before a page sees it
- pages: the pages, a module each
- rendering: renders templates, and the frame around each page
- server: runs uvicorn until a signal
- site: what all pages share: options, client, sessions
- static: style sheet and scripts
- templates: the HTML of the pages
- view: turns values into charts and text
"""
