"""What a run did: the document, the pages and the tables made of it.

Everything here is a function of the events and of the telemetry, for a running run as for a
finished one. `rmixer.report.document` builds the document, `rmixer.report.html`,
`rmixer.report.summary` and `rmixer.report.ranking` show it, `rmixer.report.write` puts it into the
run's folder; `rmixer.report.table` and `rmixer.report.plain` show a run while it runs.
"""
