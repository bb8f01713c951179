"""Who may use the dashboard: sessions, rules, addresses."""
