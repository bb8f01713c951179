"""
The dashboard: pages for operators, served by a process of its own that asks over the socket as every client does.

- app: the routes, and what starts and stops with the application
- auth: logins, sessions and the rules for requests
- data: what the dashboard asks of the server and changes there
- guard: checks every request before a page sees it
- pages: the pages, a module each
- rendering: renders templates, and the frame around each page
- server: runs uvicorn until a signal
- site: what all pages share: options, client, sessions
- static: style sheet and scripts
- templates: the HTML of the pages
- view: turns values into charts and text
"""
