"""The database side of pulse: every statement, the connections they run on, and the schema. Needs the extra
`server`.
"""
