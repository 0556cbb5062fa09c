"""Runs a batch of jobs to its end: the dispatcher driven by real time and real processes.

folder     the run's directory: one runner at a time, resume or begin anew
admit      what is believed of a job before it runs, and whether it can ever fit
watch      telemetry of running jobs, and what follows from it
loop       the loop itself: events in, log, actions out
run        the way in, for Python and the command line
"""
